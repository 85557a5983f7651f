"""A forecaster of lab 1's blocks: a series is a sentence of patches, and each patch guesses what follows it.

The idea of a vision Transformer once more (a few numbers in a row become a token) with GPT's causal mask, so that a
window of n patches has n questions to learn from. A linear function goes straight from what was seen to what comes, as
in LSTNet (Lai et al., 2018), and the blocks say what it lacks. What is answered are quantiles: not one number for an
hour, but one that it stays below half of the time, and the two between which it lies four times of five. Shapes stand
at the end of the line: batch windows of steps numbers, cut into n = steps / patch tokens of d_model numbers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.ws_mdl.practice.blocks import build_positions, build_stack, initialize
from services.ws_mdl.transformer.dataset import causal_mask

QUANTILES = (0.1, 0.5, 0.9)


class Forecaster(nn.Module):
    """Patches, positions, blocks behind a causal mask, and three quantiles of each of the next steps."""

    def __init__(
        self, lookback: int, patch: int, horizon: int, d_model: int = 64, N: int = 2, h: int = 4, d_ff: int = 128,
        dropout: float = 0.1, positions: str = "learned", direct: int = 336,
    ) -> None:  # fmt: skip
        super().__init__()
        self.lookback, self.patch, self.horizon, self.direct = lookback, patch, horizon, direct
        tokens = lookback // patch
        self.embed = nn.Linear(patch, d_model)
        self.positions = build_positions(positions, d_model, tokens, dropout)
        self.decoder = build_stack(d_model, N, h, d_ff, dropout, tokens, positions=positions)
        self.head = nn.Linear(d_model, horizon * len(QUANTILES))
        self.straight = nn.Linear(direct, horizon, bias=False)
        initialize(self)
        nn.init.zeros_(self.straight.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the quantiles of the steps behind each patch, float [batch, n, horizon, 3]; x [batch, steps]."""
        tokens = self.embed(x.unflatten(1, (-1, self.patch)))  # (batch, n, d_model)
        mask = causal_mask(tokens.shape[1]).to(x.device)  # (1, n, n)
        found = self.head(self.decoder(self.positions(tokens), mask))  # (batch, n, horizon · 3)
        below, middle, above = found.unflatten(-1, (self.horizon, len(QUANTILES))).unbind(-1)
        middle = middle + self.straight(self.recent(x))
        return torch.stack([middle - F.softplus(below), middle, middle + F.softplus(above)], dim=-1)  # never crossed

    def recent(self, x: Tensor) -> Tensor:
        """Returns the last `direct` steps of each patch, float [batch, n, direct]; 0, the mean, before the window."""
        return F.pad(x, (self.direct - self.patch, 0)).unfold(1, self.direct, self.patch)

    @torch.inference_mode()
    def forecast(self, x: Tensor) -> Tensor:
        """Returns the quantiles of the steps behind windows [batch, steps], float [batch, horizon, 3]."""
        return self(x[:, -self.lookback :])[:, -1]


def followers(series: Tensor, patch: int, horizon: int, lookback: int) -> Tensor:
    """Returns what follows each patch of windows [batch, lookback + horizon], float [batch, n, horizon]."""
    return series[:, patch:].unfold(1, horizon, patch)[:, : lookback // patch]


def pinball(quantiles: Tensor, truth: Tensor) -> Tensor:
    """Returns the mean cost of quantiles [..., 3] for the truth [...]: least where they are what they are called.

    Too low costs q for each unit, too high 1 - q: so the 0.9 quantile lies where one in ten is above it.
    """
    error = truth.unsqueeze(-1) - quantiles  # (..., 3)
    share = torch.tensor(QUANTILES, device=error.device)
    return torch.maximum(share * error, (share - 1) * error).mean()


def loss_of(model: Forecaster, windows: Tensor) -> Tensor:
    """Returns the mean cost of all questions that windows [batch, lookback + horizon] have."""
    found = model(windows[:, : model.lookback])
    return pinball(found.float(), followers(windows, model.patch, model.horizon, model.lookback))
