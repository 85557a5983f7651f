"""Lab 1's blocks put together for models of one stack: an encoder is one without a mask, a decoder one with it.

A decoder without an encoder has nothing to look across to, so its block is lab 1's `EncoderBlock`; what makes it a
decoder is the causal mask alone.
"""

from __future__ import annotations

from torch import nn

from services.ws_mdl.transformer.model import (
    Encoder,
    EncoderBlock,
    FeedForwardBlock,
    MultiHeadAttentionBlock,
    PositionalEncoding,
    RelativeBias,
    RotaryEncoding,
)

POSITIONS = ("learned", "sinusoidal", "rotary", "relative", "none")


def build_stack(
    d_model: int, N: int, h: int, d_ff: int, dropout: float, seq: int, *,
    norm: str = "pre", activation: str = "gelu", positions: str = "learned",
) -> Encoder:  # fmt: skip
    """Return N blocks of self-attention and feed-forward; seq: most tokens, for rotary positions."""
    rotary = RotaryEncoding(d_model // h, seq) if positions == "rotary" else None

    def block() -> EncoderBlock:
        relative = RelativeBias(h) if positions == "relative" else None  # each block has its own; T5's share one
        attention = MultiHeadAttentionBlock(d_model, h, dropout, rotary, relative)
        return EncoderBlock(d_model, attention, FeedForwardBlock(d_model, d_ff, dropout, activation), dropout, norm)

    return Encoder(d_model, nn.ModuleList(block() for _ in range(N)), norm)


def build_positions(kind: str, d_model: int, seq: int, dropout: float) -> PositionalEncoding:
    """Return what adds a position to each vector. Of "rotary", "relative", "none" nothing is added here."""
    return PositionalEncoding(d_model, seq, dropout, "rotary" if kind == "none" else kind)


def initialize(model: nn.Module) -> None:
    """Fill matrices Xavier-uniform as lab 1 does, and tables so that a token's vector has numbers of about 1.

    `InputEmbeddings` multiplies by √d_model, so its table begins that much smaller: the scores that a tied table gives
    are of about 1, too. Positions and segments begin smaller than tokens, which they only colour.
    """
    for name, parameter in model.named_parameters():
        if name.endswith("embed.embedding.weight"):
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        elif name.endswith((".pe", "class_token", "segments.weight")):
            nn.init.normal_(parameter, std=0.3)
        elif parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
