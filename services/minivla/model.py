"""mini-VLA's network: pictures, an instruction and the robot's state in, a chunk of actions out, denoised step by step.

Read it from top to bottom. Its blocks are lab 1's Transformer, its time embedding lab 2's. Shapes stand at the end of
the line: B observations of C cameras and L words make S tokens of d_model numbers; a chunk has T actions of A numbers.
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

PATCH = 16  # pixels of a picture's edge that a token stands for: what the stem's strides make together


@dataclass(frozen=True)
class Shape:
    """What a network is built for."""

    cameras: int  # 0: it is shown nothing
    side: int  # pixels of a picture's edge, a multiple of 16
    state: int  # numbers of the robot's state, 0: it is not told
    action: int  # numbers of an action
    chunk: int  # actions at a time
    vocabulary: int
    words: int = 48  # most words of an instruction, 0: it is told none
    d_model: int = 128
    layers: int = 3  # of the encoder
    head_layers: int = 2  # of the denoiser
    h: int = 4


@dataclass
class Memory:
    """What the network has made of observations; the denoiser looks at it in each of its steps."""

    tokens: Tensor  # (B, S, d_model)
    mask: Tensor  # (B, 1, 1, S), true where there is something to look at


class Stem(nn.Module):
    """One camera's picture becomes tokens: a convolution that quarters it, and two of which each halves it.

    Most of a step's time goes into what is large, so the first one leaves little of the picture's size.
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
        return x.flatten(2).transpose(1, 2) + self.places  # (B, places, d_model)


class MiniVLA(nn.Module):
    """`observe` reads what is seen and said into a memory; `denoise` predicts noise (or a velocity) in a chunk."""

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
            nn.init.normal_(self.embed.embedding.weight, std=d**-0.5)  # times √d_model in its forward: 1

    def observe(self, images: Tensor, words: Tensor, pad: int, state: Tensor) -> Memory:
        """Returns the memory of pictures [B, C, 3, side, side] in [-1, 1], word ids [B, L], padded, and states."""
        seen = [stem(images[:, camera]) for camera, stem in enumerate(self.stems)]  # each (B, places, d_model)
        felt = [] if self.state is None else [self.state(state).unsqueeze(1)]  # (B, 1, d_model)
        told = [] if self.embed is None else [self.pos(self.embed(words))]  # (B, L, d_model)
        tokens = torch.cat([*seen, *felt, *told], dim=1)  # (B, S, d_model)
        mask = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)  # (B, S)
        if told:
            mask[:, tokens.shape[1] - words.shape[1] :] = words != pad
        mask = mask[:, None, None]  # (B, 1, 1, S)
        return Memory(self.encoder(tokens, mask), mask)

    def denoise(self, x: Tensor, time: Tensor, memory: Memory, cache: list[LayerCache] | None = None) -> Tensor:
        """Returns the prediction for noisy chunks x [B, T, A] at times [B] from 0 (clean) to 1 (noise).

        cache: of `new_cache`, for several steps with one memory: its keys and values are computed once.
        """
        x = self.action_in(x) + self.action_places + self.time(time).unsqueeze(1)  # (B, T, d_model)
        x = self.decoder(x, memory.tokens, memory.mask, None, cache)  # every action sees all others of its chunk
        return self.action_out(x)  # (B, T, A)

    def new_cache(self) -> list[LayerCache]:
        """Returns an empty cache for `denoise`."""
        return [(None, KeyValueCache(grows=False)) for _ in self.decoder.layers]


def encoder_block(d_model: int, h: int) -> EncoderBlock:
    """Returns lab 1's block without dropout: pictures that are shifted at random do what it would."""
    return EncoderBlock(d_model, MultiHeadAttentionBlock(d_model, h, 0.0), feed_forward(d_model), 0.0)


def decoder_block(d_model: int, h: int) -> DecoderBlock:
    """Returns lab 1's block whose cross-attention looks at the memory."""
    own, cross = (MultiHeadAttentionBlock(d_model, h, 0.0) for _ in range(2))
    return DecoderBlock(d_model, own, cross, feed_forward(d_model), 0.0)


def feed_forward(d_model: int) -> FeedForwardBlock:
    """Returns the layer between attentions, four times as wide."""
    return FeedForwardBlock(d_model, 4 * d_model, 0.0, "gelu")
