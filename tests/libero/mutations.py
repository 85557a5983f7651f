"""Damage to plain trees, drawn from a seed: what a broken or hostile client may send in the place of a state."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

SCALARS = (
    None,
    True,
    0,
    -1,
    7,
    2**31,
    -(2**63),
    0.0,
    -0.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "cube_1",
    "\0",
    [],
    {},
)
DTYPES = ("|b1", "|u1", "<i8", "<u8", "<f2", "<f4")


def mutated(tree: dict[str, Any], random: np.random.Generator, most: int = 3) -> dict[str, Any]:
    """Return a copy of a state with one to `most` of its parts removed, replaced, reshaped or overwritten."""
    tree = copy.deepcopy(tree)
    for _ in range(int(random.integers(1, most + 1))):
        places = list(_places(tree))
        holder, key = places[int(random.integers(len(places)))]
        if isinstance(holder, dict) and random.random() < 0.15:
            del holder[key]
        else:
            holder[key] = _other(holder[key], random, tree)
    return tree


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (container, key) below a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        yield value, key
        yield from _places(item)


def _other(value: Any, random: np.random.Generator, tree: dict[str, Any]) -> Any:
    if random.random() < 0.25:
        return SCALARS[int(random.integers(len(SCALARS)))]
    if isinstance(value, np.ndarray):
        return _other_array(value, random)
    if isinstance(value, (dict, list)) and value:
        return value[:-1] if isinstance(value, list) else dict(list(value.items())[1:])
    if isinstance(value, (int, float)):
        return type(value)(value + random.integers(-3, 4))
    if isinstance(value, str):
        places = [holder[key] for holder, key in _places(tree) if isinstance(holder[key], str)]
        return places[int(random.integers(len(places)))]
    return [[]]


def _other_array(value: np.ndarray, random: np.random.Generator) -> np.ndarray:
    kind = int(random.integers(6))
    if kind == 0:
        return value[:-1] if value.ndim else value
    if kind == 1:
        return value.reshape(-1)
    if kind == 2:
        return np.concatenate([value, value]) if value.ndim else value
    if kind == 3:
        with np.errstate(invalid="ignore"):
            return value.astype(DTYPES[int(random.integers(len(DTYPES)))])
    changed = value.copy()
    if kind == 4 and changed.size:
        wrong = (np.nan, np.inf, -1e300, 0.0) if changed.dtype.kind == "f" else (-1, 2**30, 0, 1)
        changed.reshape(-1)[int(random.integers(changed.size))] = wrong[int(random.integers(4))]
    elif kind == 5:
        changed = (random.normal(size=value.shape) * 10.0 ** random.integers(-6, 7)).astype(value.dtype)
    return changed
