"""mini-VLA's network: from images, instruction and robot state to a chunk of actions.

Read it from top to bottom. Its blocks are lab 1's Transformer, its time embedding lab 2's. Shapes stand at the end of
the line: B observations of C cameras and L text tokens become S tokens of d_model numbers; a chunk has T actions of A.

The network looks before it acts. The instruction asks two questions of every image: where is the thing that it names,
and where does that thing belong? Each answer is a probability over the cells of a feature map, so it keeps a place.
From the answers of all cameras the network estimates both places in space: a fixed camera shows a place in the room,
the hand's camera an offset from the hand. The network acts relative to these places.
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

CELL = 4  # pixels per cell of the feature map and axis: the stem's stride
THINGS = 2  # questions per image: the named thing, and the place it belongs to
XYZ = 3
SCALES = (1.0, 4.0, 16.0)  # an offset is read at: in units of the normalized state, which are about 10 cm for LIBERO


@dataclass(frozen=True)
class Shape:
    """The dimensions of a network. Field names are keys of weights files."""

    cameras: int  # 0: no images
    side: int  # height and width of an image in pixels, a multiple of 4
    state: int  # dimensions of the robot's state, the hand's position first; 0: no state
    action: int  # dimensions of an action
    chunk: int  # actions per prediction
    vocabulary: int
    words: int = 48  # maximum tokens of an instruction; 0: no instruction
    answers: bool = True  # actions depend on what the images answered; else on the places in space alone
    features: int = 64  # channels of the feature map
    d_model: int = 128
    layers: int = 3  # of the encoder
    head_layers: int = 2  # of the denoiser
    h: int = 4


@dataclass
class Looks:
    """What the network found: both things in every image and in space."""

    cells: Tensor  # (B, C, things, cells + 1): log-probabilities; the last one means "not in this image"
    answers: Tensor  # (B, C things, d_model): tokens
    places: Tensor  # (B, things, 3): positions, in the units of the normalized state


@dataclass
class EncodedObservations:
    """Encoded observations; the denoiser attends to them in every step."""

    tokens: Tensor  # (B, S, d_model)
    mask: Tensor  # (B, 1, 1, S), true at tokens that are not padding


class Stem(nn.Module):
    """Turn one camera's image into a map of features that keeps where things are, a cell per 4 x 4 pixels."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.layers = nn.Sequential()
        for before, width, kernel, stride, dilation in (
            (3, 32, 2 * CELL, CELL, 1),
            (32, features, 3, 1, 1),
            (features, features, 3, 1, 2),
        ):
            padding = dilation * (kernel - 1) // 2 if stride == 1 else (kernel - stride) // 2
            self.layers += nn.Sequential(
                nn.Conv2d(before, width, kernel, stride, padding, dilation), nn.GroupNorm(8, width), nn.GELU()
            )

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(x.contiguous(memory_format=torch.channels_last))  # (B, features, side / 4, side / 4)
        return x.flatten(2).transpose(1, 2)  # (B, cells, features)


class Look(nn.Module):
    """Ask one camera's features where the things are that the sentence speaks of."""

    def __init__(self, side: int, features: int, d_model: int) -> None:
        super().__init__()
        self.stem = Stem(features)
        self.key = nn.Linear(features, features)
        self.question = nn.Linear(d_model, features)
        self.nowhere = nn.Parameter(torch.zeros(THINGS))  # score of "not in this image"
        self.answer = EmbedFC(features + 3, d_model)
        centres = (torch.arange(side // CELL) + 0.5) * 2 * CELL / side - 1  # in [-1, 1]
        self.width = 2 * CELL / side  # of a cell
        grid = torch.cartesian_prod(centres, centres).flip(1)  # (cells, 2): x to the right, y down
        self.register_buffer("grid", grid, persistent=False)

    def forward(self, image: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities [B, things, cells + 1] and the answers as tokens [B, things, d_model]."""
        seen = self.stem(image)  # (B, cells, features)
        scores = self.question(asked) @ self.key(seen).transpose(1, 2) / seen.shape[-1] ** 0.5  # (B, things, cells)
        nowhere = self.nowhere.to(scores.dtype)[:, None].expand(len(scores), -1, 1)  # (B, things, 1)
        log_p = torch.cat([scores, nowhere], -1).float().log_softmax(-1)  # (B, things, cells + 1)
        p = log_p[..., :-1].exp()  # (B, things, cells)
        found = torch.cat([p @ self.grid, p.sum(-1, keepdim=True), p @ seen.float()], -1)  # (B, things, 3 + features)
        return log_p, self.answer(found).unflatten(0, found.shape[:2])

    def cells(self, points: Tensor) -> Tensor:
        """Return the probabilities [..., cells + 1] to learn from, of points [..., 2] in the image, NaN outside."""
        distance = (points.nan_to_num()[..., None, :] - self.grid).square().sum(-1) / self.width**2  # (..., cells)
        inside = points.isfinite().all(-1, keepdim=True)  # (..., 1)
        return torch.cat([(-distance).softmax(-1) * inside, (~inside).float()], -1)  # a bell about a cell wide


class MiniVLA(nn.Module):
    """`observe` encodes observations into a memory; `denoise` predicts a chunk, its noise or its velocity."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, d = shape, shape.d_model
        self.embed = InputEmbeddings(d, shape.vocabulary) if shape.words else None
        self.pos = PositionalEncoding(d, max(1, shape.words), 0.0)
        self.asks = nn.Parameter(torch.randn(THINGS, d) * 0.02)  # the two questions
        self.reader = decoder_block(d, shape.h)  # fills the questions in from the words
        self.eyes = nn.ModuleList(Look(shape.side, shape.features, d) for _ in range(shape.cameras))
        self.where = nn.Sequential(
            nn.Linear(shape.cameras * THINGS * d + shape.state, 2 * d), nn.GELU(),
            nn.Linear(2 * d, d), nn.GELU(), nn.Linear(d, THINGS * (XYZ + XYZ + 1)),
        )  # fmt: skip
        self.ahead = EmbedFC((len(SCALES) * (THINGS + 1) + THINGS) * XYZ, d)
        self.state = EmbedFC(shape.state, d) if shape.state else None
        self.encoder = Encoder(d, nn.ModuleList(encoder_block(d, shape.h) for _ in range(shape.layers)))
        self.action_in = nn.Linear(shape.action, d)
        self.action_places = nn.Parameter(torch.randn(shape.chunk, d) * 0.5)  # smaller, they hardly differ for long
        self.time = EmbedFC(1, d)
        self.decoder = Decoder(d, nn.ModuleList(decoder_block(d, shape.h) for _ in range(shape.head_layers)))
        self.action_out = nn.Linear(d, shape.action)
        if self.embed is not None:
            nn.init.normal_(self.embed.embedding.weight, std=d**-0.5)  # its forward multiplies by √d_model

    def observe(self, images: Tensor, word_ids: Tensor, pad: int, state: Tensor) -> EncodedObservations:
        """Encode images [B, C, 3, side, side] in [-1, 1], token ids [B, L], padded, and states [B, state]."""
        return self.encode(self.look(images, word_ids, pad, state) if self.eyes else None, word_ids, pad, state)

    def look(self, images: Tensor, word_ids: Tensor, pad: int, state: Tensor) -> Looks:
        """Find the things that the instruction speaks of in images [B, C, 3, side, side], and in space."""
        asked = self.asks.expand(len(images), -1, -1)  # (B, things, d_model)
        if self.embed is not None:
            text, real = self.pos(self.embed(word_ids)), (word_ids != pad)[:, None, None]
            asked = self.reader(asked, text, real, None)  # (B, things, d_model)
        cells, answers = zip(*(eye(images[:, camera], asked) for camera, eye in enumerate(self.eyes)), strict=True)
        answer = torch.cat(answers, 1)  # (B, C things, d_model)
        known = torch.cat([answer.flatten(1), state[:, : self.shape.state]], 1)  # (B, C things d_model + state)
        found = self.where(known).float().unflatten(1, (THINGS, -1))  # (B, things, 7)
        in_room, from_hand, trust = found.split((XYZ, XYZ, 1), -1)  # (B, things, 3), the same, (B, things, 1)
        places = in_room.lerp(self.hand(state) + from_hand, trust.sigmoid())  # (B, things, 3)
        return Looks(torch.stack(cells, 1), answer, places)

    def hand(self, state: Tensor) -> Tensor:
        """Return the hand's position [B, 1, 3] in the units of `Looks.places`; zeros for a network without state."""
        return state[:, None, :XYZ].float() if self.shape.state else state.new_zeros(len(state), 1, XYZ)

    def encode(self, looks: Looks | None, word_ids: Tensor, pad: int, state: Tensor) -> EncodedObservations:
        """Encode what was found, with token ids [B, L] and states [B, state]; None: no images."""
        tokens = []
        if looks is not None:
            tokens += [looks.answers] if self.shape.answers else []  # (B, C things, d_model)
            ahead = looks.places - self.hand(state)  # (B, things, 3): seen from the hand
            way = looks.places[:, :1] - looks.places[:, -1:]  # (B, 1, 3): from the thing's goal to the thing
            offsets = torch.cat([ahead, way], 1).flatten(1)  # (B, (things + 1) 3)
            scaled = [(offsets * scale).tanh() for scale in SCALES]  # coarse and fine
            tokens += [self.ahead(torch.cat([*scaled, looks.places.flatten(1)], 1)).unsqueeze(1)]  # (B, 1, d_model)
        tokens += [] if self.state is None else [self.state(state).unsqueeze(1)]  # (B, 1, d_model)
        tokens += [] if self.embed is None else [self.pos(self.embed(word_ids))]  # (B, L, d_model)
        tokens = torch.cat(tokens, dim=1)  # (B, S, d_model)
        mask = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)  # (B, S)
        if self.embed is not None:
            mask[:, tokens.shape[1] - word_ids.shape[1] :] = word_ids != pad
        mask = mask[:, None, None]  # (B, 1, 1, S)
        return EncodedObservations(self.encoder(tokens, mask), mask)

    def eyesight(self) -> list[nn.Parameter]:
        """Return the weights that `look` uses."""
        parts = [part for part in (self.embed, self.reader, self.eyes, self.where) if part is not None]
        return [self.asks, *(weight for part in parts for weight in part.parameters())]

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
