"""The Vision Transformer (Dosovitskiy et al., 2020), of lab 1's encoder: a picture is a sentence of patches.

Shapes stand at the end of the line: batch pictures of n = (side / patch)² patches, each a vector of d_model numbers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.ws_mdl.practice.blocks import build_positions, build_stack, initialize
from services.ws_mdl.transformer.visualize import keeping_weights


class PatchEmbedding(nn.Module):
    """Cuts a picture into squares and makes a vector of each: one linear layer for all of them.

    A convolution whose stride is its kernel's size is just that.
    """

    def __init__(self, channels: int, patch: int, d_model: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, d_model, kernel_size=patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)  # (batch, channels, side, side) -> (batch, n, d_model)


class VisionTransformer(nn.Module):
    """Patches, a class token before them, positions, lab 1's encoder, and a linear layer on the class token."""

    def __init__(
        self, side: int, channels: int, classes: int, patch: int = 4, d_model: int = 64, N: int = 4, h: int = 4,
        d_ff: int = 128, dropout: float = 0.1, positions: str = "learned",
    ) -> None:  # fmt: skip
        super().__init__()
        if side % patch != 0:
            raise ValueError(f"pictures of {side} × {side} cannot be cut into patches of {patch}; choose another patch")
        self.grid = side // patch
        seq = self.grid**2 + 1  # the class token and the patches
        self.patches = PatchEmbedding(channels, patch, d_model)
        self.class_token = nn.Parameter(torch.empty(1, 1, d_model))
        self.positions = build_positions(positions, d_model, seq, dropout)
        self.encoder = build_stack(d_model, N, h, d_ff, dropout, seq, positions=positions)
        self.head = nn.Linear(d_model, classes)
        initialize(self)
        nn.init.normal_(self.head.weight, std=0.02)  # it begins without an opinion: each class as likely as any

    def tokens(self, x: Tensor) -> Tensor:
        """Returns what the encoder is given: the class token, then the patches, with their positions."""
        patches = self.patches(x)  # (batch, n, d_model)
        return self.positions(torch.cat([self.class_token.expand(len(x), -1, -1), patches], dim=1))

    def forward(self, x: Tensor) -> Tensor:
        """Returns a score for each class [batch, classes] of pictures float [batch, channels, side, side]."""
        x = self.encoder(self.tokens(x), None)  # (batch, 1 + n, d_model): every patch may look at every other
        return self.head(x[:, 0])


def loss_of(model: VisionTransformer, x: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Returns the cross-entropy of pictures [batch, channels, side, side] with their classes int64 [batch]."""
    return F.cross_entropy(model(x).float(), labels, label_smoothing=smoothing)


# --- where does it look? ------------------------------------------------------------------------------------


@torch.inference_mode()
def attention_of(model: VisionTransformer, x: Tensor) -> Tensor:
    """Returns every layer's and head's weights for pictures: float [layers, batch, h, 1 + n, 1 + n]."""
    was_training = model.training
    model.eval()
    with keeping_weights(model):
        model(x)
        maps = [layer.self_attention_block.attention_scores.float() for layer in model.encoder.layers]
    model.train(was_training)
    return torch.stack(maps)


def rollout(maps: Tensor) -> Tensor:
    """Returns what the class token has taken from each patch, through all layers: float [batch, grid, grid], sum 1.

    Attention roll-out (Abnar & Zuidema, 2020): a layer mixes tokens by its heads' mean, half of each token going around
    it by the residual connection; the mixtures of all layers are multiplied. maps: as `attention_of` returns them.
    """
    around = torch.eye(maps.shape[-1], device=maps.device)
    mixed = around.expand(maps.shape[1], -1, -1)  # (batch, 1 + n, 1 + n)
    for weights in maps.mean(dim=2):  # over heads
        mixed = (weights + around) / 2 @ mixed
    seen = mixed[:, 0, 1:]  # the class token's row, without itself
    grid = round(seen.shape[-1] ** 0.5)
    return (seen / seen.sum(dim=-1, keepdim=True)).unflatten(-1, (grid, grid))
