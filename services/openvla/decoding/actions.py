"""Tokens to actions and back (openvla: prismatic/vla/action_tokenizer.py, modeling_prismatic.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from services.openvla.checkpoint.config import ModelConfig


@dataclass(frozen=True)
class ActionCodec:
    """The last `bins` ids below `vocab_size` are the bins of [-1, 1]; the highest id is the lowest bin.

    `bins` edges enclose bins - 1 intervals, whose centres are the values; the two ends share an interval.
    """

    vocab_size: int = 32000
    bins: int = 256

    @cached_property
    def edges(self) -> np.ndarray:
        """float64 [bins], from -1 to 1."""
        return np.linspace(-1.0, 1.0, self.bins)

    @cached_property
    def centres(self) -> np.ndarray:
        """float64 [bins - 1]."""
        edges = self.edges
        return (edges[:-1] + edges[1:]) / 2.0

    def values(self, tokens: np.ndarray) -> np.ndarray:
        """Return float64 [...] in (-1, 1) of int token ids [...]; ids outside the action range are clipped."""
        index = np.clip(self.vocab_size - tokens - 1, 0, self.bins - 2)
        return self.centres[index]

    def tokens(self, values: np.ndarray) -> np.ndarray:
        """Return int64 token ids [...] of normalised values [...], clipped to [-1, 1]."""
        return self.vocab_size - np.digitize(np.clip(values, -1.0, 1.0), self.edges)

    def is_action(self, tokens: np.ndarray) -> np.ndarray:
        """Return bool [...]: which ids are action tokens."""
        return (tokens >= self.vocab_size - self.bins) & (tokens < self.vocab_size)


def codec_of(config: ModelConfig) -> ActionCodec:
    return ActionCodec(config.action_vocab_size, config.n_action_bins)


def unnormalise(values: np.ndarray, stats: Mapping[str, Any]) -> np.ndarray:
    """Return float64 [..., n]: [-1, 1] scaled to q01 … q99 where `mask` is true, else unchanged."""
    low, high = np.asarray(stats["q01"], np.float64), np.asarray(stats["q99"], np.float64)
    return np.where(stats["mask"], 0.5 * (values + 1) * (high - low) + low, values)


def normalise_state(state: np.ndarray, stats: Mapping[str, Any]) -> np.ndarray:
    """Return float64 [..., n]: q01 … q99 scaled to [-1, 1] where `mask` is true, and clipped there."""
    low, high = np.asarray(stats["q01"], np.float64), np.asarray(stats["q99"], np.float64)
    scaled = 2 * (state - low) / (high - low + 1e-8) - 1
    return np.clip(np.where(stats["mask"], scaled, state), -1.0, 1.0)


class ActionTable:
    """Action value of every token in every dimension, with a data set's statistics: computed once, then looked up.

    It runs after the model for every answer, when numpy's code is no longer in the CPU's caches.
    """

    def __init__(self, codec: ActionCodec, stats: Mapping[str, Any]):
        self._top = codec.vocab_size - 1  # the token of the lowest bin
        lowest_first = np.arange(self._top, self._top - (codec.bins - 1), -1)
        self._rows = unnormalise(codec.values(lowest_first)[:, None], stats).astype(np.float32).tolist()

    def action(self, tokens: Sequence[int]) -> np.ndarray:
        """Return float32 [n] of n token ids, equal to `unnormalise(codec.values(tokens), stats)`."""
        last = len(self._rows) - 1
        bins = (min(max(self._top - token, 0), last) for token in tokens)
        return np.array([self._rows[bin][dimension] for dimension, bin in enumerate(bins)], np.float32)


def normalise(actions: np.ndarray, stats: Mapping[str, Any]) -> np.ndarray:
    """Return float64 [..., n], the inverse of `unnormalise`, clipped to [-1, 1]."""
    low, high = np.asarray(stats["q01"], np.float64), np.asarray(stats["q99"], np.float64)
    spread = np.where(high > low, high - low, 1.0)
    return np.clip(np.where(stats["mask"], 2 * (actions - low) / spread - 1, actions), -1.0, 1.0)
