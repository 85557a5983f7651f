"""How well answers agree with recorded actions: correlations, their likelihood ratio, and a bootstrap over moments.

A policy that is merely poor answers too small or shifted actions. So the model is recorded = a · answer + b + noise
with a ≥ 0 and free a, b and noise for each dimension. Its log-likelihood per number, above that of a constant answer,
is −½ log(1 − ρ²) for a correlation ρ > 0 and 0 otherwise.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

RESAMPLES = 200
CERTAIN = 3.0  # standard deviations: about 60 hypotheses are tested, most of them worse than the plain one
FLOOR = 2e-3  # smallest 1 − ρ²: videos are compressed, so no answer is exact
CLIPPED = (0.01, 0.99)  # quantiles that answers are clipped to


@dataclass(frozen=True)
class Comparison:
    """log_ratio: log-likelihood per number of one hypothesis above another; deviation: its standard deviation."""

    log_ratio: float
    deviation: float

    @property
    def times(self) -> float:
        """How many times smaller the remaining error is."""
        return float(np.exp(self.log_ratio))

    @property
    def lower(self) -> float:
        """The ratio of errors that is exceeded with certainty."""
        return float(np.exp(self.log_ratio - CERTAIN * self.deviation))

    @property
    def is_certain(self) -> bool:
        """Whether the one hypothesis certainly explains more than the other."""
        return self.lower > 1

    @property
    def upper(self) -> float:
        return float(np.exp(self.log_ratio + CERTAIN * self.deviation))


@functools.cache
def resampling(moments: int) -> np.ndarray:
    """Return how often each moment is drawn, float64 [1 + RESAMPLES, moments]; the first row is the sample itself."""
    generator = np.random.default_rng(0)
    drawn = generator.multinomial(moments, np.full(moments, 1 / moments), size=RESAMPLES)
    return np.concatenate([np.ones((1, moments)), drawn])


class Fit:
    """Answers against recorded actions, both float64 [M, T, n] with NaN where there is none.

    rho [1 + RESAMPLES, n]: correlations; log_scale, shift [1 + RESAMPLES, n]: log of the recorded standard deviation
    over the answers', and the difference of the means (answer − recorded) in recorded standard deviations.
    """

    def __init__(self, answers: np.ndarray, recorded: np.ndarray):
        known = np.isfinite(answers) & np.isfinite(recorded)
        clipped = clip(np.where(known, answers, np.nan))
        x, y = np.where(known, clipped, 0.0), np.where(known, recorded, 0.0)
        centre = x.sum((0, 1)) / np.maximum(1, known.sum((0, 1)))
        x = np.where(known, x - centre, 0.0)  # for precision, where a scale is far off
        sums = np.stack([known, x, y, x * x, y * y, x * y], -1).sum(1)  # [M, n, 6]
        count, sx, sy, sxx, syy, sxy = np.moveaxis(np.einsum("bm,mns->bns", resampling(len(x)), sums), -1, 0)
        count = np.maximum(count, 1)
        var_x = np.maximum(sxx / count - (sx / count) ** 2, 0)
        var_y = np.maximum(syy / count - (sy / count) ** 2, 0)
        self.still = (var_x[0] < 1e-12) | (count[0] < 3)  # the answer never changes
        spread = np.sqrt(var_x * var_y)
        safe = np.where(spread > 1e-12, spread, 1.0)
        covariance = sxy / count - sx * sy / count**2
        self.rho = np.where(spread > 1e-12, np.clip(covariance / safe, -1, 1), 0.0)
        self.log_scale = 0.5 * (np.log(np.maximum(var_y, 1e-12)) - np.log(np.maximum(var_x, 1e-12)))
        self.shift = (centre + sx / count - sy / count) / np.sqrt(np.maximum(var_y, 1e-12))
        self.count = count[0]

    def gain(self, signed: bool = True) -> np.ndarray:
        """Return the log-likelihood per number above a constant's, [1 + RESAMPLES, n]. signed: a ≥ 0."""
        rho = np.maximum(self.rho, 0) if signed else self.rho
        return -0.5 * np.log(np.maximum(1 - rho**2, FLOOR))


def clip(answers: np.ndarray) -> np.ndarray:
    """Return answers with outliers of each dimension clipped."""
    flat = answers.reshape(-1, answers.shape[-1])
    if not len(flat) or not np.isfinite(flat).any():
        return answers
    empty = ~np.isfinite(flat).any(0)
    low, high = np.nanquantile(np.where(empty, 0.0, flat), CLIPPED, axis=0)
    return np.clip(answers, low, high)


def compare(gain: np.ndarray, other: np.ndarray, dimensions: np.ndarray) -> Comparison:
    """Compare two gains [1 + RESAMPLES, n] over some dimensions, resample by resample."""
    difference = (gain - other)[:, dimensions].mean(1)
    return Comparison(float(difference[0]), float(difference[1:].std()))


def zero(gain: np.ndarray) -> np.ndarray:
    """Return the gain of a constant answer."""
    return np.zeros_like(gain)


def live_dimensions(recorded: np.ndarray) -> np.ndarray:
    """Return the indices of the dimensions whose recorded numbers [M, T, n] change often enough to compare."""
    flat = recorded.reshape(-1, recorded.shape[-1])
    spread = np.nanstd(flat, 0)
    usual = np.nanmedian(flat, 0)
    moving = np.nanmean(np.abs(flat - usual) > 0.02 * np.nanmax(np.abs(flat - usual) + 1e-9, 0), 0)
    return np.flatnonzero((spread > 1e-6) & (moving > 0.02))
