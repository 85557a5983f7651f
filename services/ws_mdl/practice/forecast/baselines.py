"""What a forecaster has to beat: the last number, the last week's, and a line through all of what it sees."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from services.ws_mdl.practice.forecast.data import Series

RIDGES = (1.0, 10.0, 100.0, 1000.0)
TRIED = 0.1  # of what is learned from: its end, on which the ridge is chosen

Guess = Callable[[Tensor], Tensor]  # origins int64 [n] → values [n, horizon]


def naive(data: Series) -> Guess:
    """Says that everything stays as it is."""
    return lambda origins: data.values[origins - 1, None].expand(-1, data.horizon)


def seasonal(data: Series, season: int) -> Guess:
    """Says what was said a season before; where a season is shorter than the horizon, the last whole one again."""
    ahead = torch.arange(data.horizon)
    back = season * (1 + ahead // season)
    return lambda origins: data.values[origins[:, None] + ahead - back]


def linear(data: Series) -> Guess:
    """Says what a linear function of the same lookback says, fitted by ridge regression to every window learned from.

    It sees the series as the model does. How strong the ridge is, the end of what is learned from decides.
    """
    windows = data.x[: data.first_held].double().unfold(0, data.lookback + data.horizon, 1)
    cut = round((1 - TRIED) * len(windows))
    tried = {
        ridge: _error(fitted(windows[:cut], data.lookback, ridge), windows[cut:], data.lookback) for ridge in RIDGES
    }
    weights = fitted(windows, data.lookback, min(tried, key=tried.get))

    def guess(origins: Tensor) -> Tensor:
        past = data.x[origins[:, None] - data.lookback + torch.arange(data.lookback)].double()
        return data.counted(_with_one(past) @ weights)

    return guess


def fitted(windows: Tensor, lookback: int, ridge: float) -> Tensor:
    """Returns the weights [lookback + 1, horizon] of a ridge regression, from windows [n, lookback + horizon]."""
    past, future = _with_one(windows[:, :lookback]), windows[:, lookback:]
    penalty = ridge * torch.eye(lookback + 1, dtype=past.dtype)
    penalty[-1, -1] = 0.0  # the constant costs nothing
    return torch.linalg.solve(past.T @ past + penalty, past.T @ future)


def _with_one(past: Tensor) -> Tensor:
    return torch.cat([past, torch.ones_like(past[:, :1])], dim=1)


def _error(weights: Tensor, windows: Tensor, lookback: int) -> float:
    return (_with_one(windows[:, :lookback]) @ weights - windows[:, lookback:]).abs().mean().item()
