"""How far a policy's actions are from recorded ones: per dimension, key and episode, as they are and normalised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vla_contract.protocol.parts import Part

KINDS = ("mse", "mae", "mse_normalised", "mae_normalised")


@dataclass(frozen=True)
class Ruler:
    """Normalises by the data set's range of each dimension, to [-1, 1]; one that never changes is 0."""

    low: np.ndarray
    high: np.ndarray

    def __call__(self, actions: np.ndarray) -> np.ndarray:
        """Returns them normalised."""
        width = self.high - self.low
        return np.where(width > 0, 2 * (actions - self.low) / np.where(width > 0, width, 1) - 1, 0)


def errors(predicted: np.ndarray, true: np.ndarray, ruler: Ruler) -> dict[str, np.ndarray]:
    """Returns each of KINDS by dimension, float64 [n], of actions [T, n]."""
    plain, normalised = predicted - true, ruler(predicted) - ruler(true)
    found = {}
    for suffix, apart in (("", plain), ("_normalised", normalised)):
        found[f"mse{suffix}"], found[f"mae{suffix}"] = (apart**2).mean(0), np.abs(apart).mean(0)
    return found


def means(found: dict[str, np.ndarray], places: slice = slice(None)) -> dict[str, float]:
    """Returns each kind over some dimensions."""
    return {kind: float(found[kind][places].mean()) for kind in KINDS}


def by_dimension(found: dict[str, np.ndarray], parts: Sequence[Part]) -> list[dict]:
    """Returns a row per dimension: its name, its key, each kind."""
    return [
        {"dimension": name, "key": part.name, **means(found, slice(place, place + 1))}
        for place, (name, part) in enumerate(dimensions(parts))
    ]


def by_key(found: dict[str, np.ndarray], parts: Sequence[Part]) -> list[dict]:
    """Returns a row per part of the action."""
    rows, at = [], 0
    for part in parts:
        rows.append({"key": part.name, "size": part.size, **means(found, slice(at, at + part.size))})
        at += part.size
    return rows


def dimensions(parts: Sequence[Part]) -> list[tuple[str, Part]]:
    """Returns each number's name and the part it belongs to: "gripper", "position delta 2"."""
    return [(part.name if part.size == 1 else f"{part.name} {i}", part) for part in parts for i in range(part.size)]
