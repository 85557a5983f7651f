"""Models of a single stack of lab 1's blocks: encoders without a mask, decoders with a causal mask.

A decoder-only model has no cross-attention, so its block is lab 1's `EncoderBlock`; only the causal mask makes it a
decoder.
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


def build_stack(
    d_model: int, N: int, h: int, d_ff: int, dropout: float, seq: int, *,
    norm: str = "pre", activation: str = "gelu", positions: str = "learned",
) -> Encoder:  # fmt: skip
    """Return N blocks of self-attention and feed-forward; seq: maximum length, for rotary positions."""
    rotary = RotaryEncoding(d_model // h, seq) if positions == "rotary" else None

    def block() -> EncoderBlock:
        relative = RelativeBias(h) if positions == "relative" else None  # each block has its own; T5's share one
        attention = MultiHeadAttentionBlock(d_model, h, dropout, rotary, relative)
        return EncoderBlock(d_model, attention, FeedForwardBlock(d_model, d_ff, dropout, activation), dropout, norm)

    return Encoder(d_model, nn.ModuleList(block() for _ in range(N)), norm)


def build_positions(kind: str, d_model: int, seq: int, dropout: float) -> PositionalEncoding:
    """Return the positional encoding; "rotary", "relative" and "none" add nothing to the vectors."""
    return PositionalEncoding(d_model, seq, dropout, "rotary" if kind == "none" else kind)


def initialize(model: nn.Module) -> None:
    """Initialize matrices Xavier-uniform as in lab 1, and embeddings so that token vectors have unit scale.

    `InputEmbeddings` multiplies by √d_model, so its table is initialized smaller by this factor; the scores of a tied
    table then have unit scale too. Positions and segments are initialized smaller than tokens.
    """
    for name, parameter in model.named_parameters():
        if name.endswith("embed.embedding.weight"):
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        elif name.endswith((".pe", "class_token", "segments.weight")):
            nn.init.normal_(parameter, std=0.3)
        elif parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
