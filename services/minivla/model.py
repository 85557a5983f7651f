"""mini-VLA's network: from images, instruction and robot state to a chunk of actions, by iterative denoising.

Read it from top to bottom. Its blocks are lab 1's Transformer, its time embedding lab 2's. Shapes stand at the end of
the line: B observations of C cameras and L text tokens become S tokens of d_model numbers; a chunk has T actions of A.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from services.ws_mdl.diffusion.model import EmbedFC
from services.ws_mdl.transformer.model import (
    Decoder,
    DecoderBlock,
    Encoder,
    EncoderBlock,
    FeedForwardBlock,
    InputEmbeddings,
    KeyValueCache,
    LayerCache,
    MultiHeadAttentionBlock,
    PositionalEncoding,
)

PATCH = 16  # pixels per token and axis: the product of the stem's strides


@dataclass(frozen=True)
class Shape:
    """The dimensions of a network. Field names are keys of weights files."""

    cameras: int  # 0: no images
    side: int  # height and width of an image in pixels, a multiple of 16
    state: int  # dimensions of the robot's state; 0: no state
    action: int  # dimensions of an action
    chunk: int  # actions per prediction
    vocabulary: int
    words: int = 48  # maximum tokens of an instruction; 0: no instruction
    d_model: int = 128
    layers: int = 3  # of the encoder
    head_layers: int = 2  # of the denoiser
    h: int = 4


@dataclass
class EncodedObservations:
    """Encoded observations; the denoiser attends to them in every step."""

    tokens: Tensor  # (B, S, d_model)
    mask: Tensor  # (B, 1, 1, S), true at tokens that are not padding


class Stem(nn.Module):
    """Turn one camera's image into tokens by three convolutions of stride 4, 2 and 2.

    The first one shrinks the image the most, because large feature maps dominate the training time.
    """

    def __init__(self, side: int, d_model: int) -> None:
        super().__init__()
        self.layers = nn.Sequential()
        for before, width, stride in ((3, 32, 4), (32, 64, 2), (64, d_model, 2)):
            self.layers += nn.Sequential(
                nn.Conv2d(before, width, 2 * stride, stride, stride // 2), nn.GroupNorm(8, width), nn.GELU()
            )
        self.places = nn.Parameter(torch.randn((side // PATCH) ** 2, d_model) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(x.contiguous(memory_format=torch.channels_last))  # (B, d_model, side / 16, side / 16)
        return x.flatten(2).transpose(1, 2) + self.places  # (B, patches, d_model)


class MiniVLA(nn.Module):
    """`observe` encodes observations into a memory; `denoise` predicts the noise (or velocity) of a chunk."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, d = shape, shape.d_model
        self.stems = nn.ModuleList(Stem(shape.side, d) for _ in range(shape.cameras))
        self.embed = InputEmbeddings(d, shape.vocabulary) if shape.words else None
        self.pos = PositionalEncoding(d, max(1, shape.words), 0.0)
        self.state = EmbedFC(shape.state, d) if shape.state else None
        self.encoder = Encoder(d, nn.ModuleList(encoder_block(d, shape.h) for _ in range(shape.layers)))
        self.action_in = nn.Linear(shape.action, d)
        self.action_places = nn.Parameter(torch.randn(shape.chunk, d) * 0.02)
        self.time = EmbedFC(1, d)
        self.decoder = Decoder(d, nn.ModuleList(decoder_block(d, shape.h) for _ in range(shape.head_layers)))
        self.action_out = nn.Linear(d, shape.action)
        if self.embed is not None:
            nn.init.normal_(self.embed.embedding.weight, std=d**-0.5)  # its forward multiplies by √d_model

    def observe(self, images: Tensor, word_ids: Tensor, pad: int, state: Tensor) -> EncodedObservations:
        """Encode images [B, C, 3, side, side] in [-1, 1], token ids [B, L], padded, and states [B, state]."""
        image_tokens = [stem(images[:, camera]) for camera, stem in enumerate(self.stems)]  # each (B, patches, d_model)
        state_tokens = [] if self.state is None else [self.state(state).unsqueeze(1)]  # (B, 1, d_model)
        text_tokens = [] if self.embed is None else [self.pos(self.embed(word_ids))]  # (B, L, d_model)
        tokens = torch.cat([*image_tokens, *state_tokens, *text_tokens], dim=1)  # (B, S, d_model)
        mask = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)  # (B, S)
        if text_tokens:
            mask[:, tokens.shape[1] - word_ids.shape[1] :] = word_ids != pad
        mask = mask[:, None, None]  # (B, 1, 1, S)
        return EncodedObservations(self.encoder(tokens, mask), mask)

    def denoise(
        self, x: Tensor, time: Tensor, memory: EncodedObservations, cache: list[LayerCache] | None = None
    ) -> Tensor:
        """Return the prediction for noisy chunks x [B, T, A] at times [B] from 0 (clean) to 1 (noise).

        cache: from `new_cache`; computes the memory's keys and values once for all denoising steps.
        """
        x = self.action_in(x) + self.action_places + self.time(time).unsqueeze(1)  # (B, T, d_model)
        x = self.decoder(x, memory.tokens, memory.mask, None, cache)  # no mask: actions attend to each other
        return self.action_out(x)  # (B, T, A)

    def new_cache(self) -> list[LayerCache]:
        return [(None, KeyValueCache(grows=False)) for _ in self.decoder.layers]


def encoder_block(d_model: int, h: int) -> EncoderBlock:
    """Return lab 1's block without dropout: random shifts of the images already regularize."""
    return EncoderBlock(d_model, MultiHeadAttentionBlock(d_model, h, 0.0), feed_forward(d_model), 0.0)


def decoder_block(d_model: int, h: int) -> DecoderBlock:
    """Return lab 1's block; its cross-attention reads the memory."""
    self_attention, cross_attention = (MultiHeadAttentionBlock(d_model, h, 0.0) for _ in range(2))
    return DecoderBlock(d_model, self_attention, cross_attention, feed_forward(d_model), 0.0)


def feed_forward(d_model: int) -> FeedForwardBlock:
    return FeedForwardBlock(d_model, 4 * d_model, 0.0, "gelu")
