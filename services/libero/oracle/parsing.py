"""Reads the parts of a privileged state, whoever sent it: of the right kind and shape, finite, and not endlessly many.

All raise ValueError naming the part. What is kept or looped over is bounded here, so that no state, however made, costs
more than a scene does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MOST = 1e10  # MuJoCo itself gives up on larger numbers (mjMAXVAL)
REACH = 20.0  # m; what has fallen out of the world is as far away as this
MAX_BODIES, MAX_SHAPES, MAX_NAMED = 512, 4096, 512  # a LIBERO scene has up to 40, 200 and 60
MAX_GOALS, MAX_CONTACTS = 32, 8192
MAX_TEXT = 1000  # characters


def numbers(table: Mapping[str, Any], name: str, *shape: int, most: float = MOST) -> np.ndarray:
    """Returns `table[name]` as float64 of that shape, every number within ±`most`."""
    array = np.asarray(table[name], dtype=np.float64)
    if array.shape != shape:
        raise ValueError(f"{name} has shape {list(array.shape)}; expected {list(shape)}")
    if array.size and not float(np.abs(array).max()) <= most:  # NaN is not <= either
        raise ValueError(f"{name} holds {array.flat[np.abs(array).argmax()]}; expected numbers within ±{most:g}")
    return array


def positions(table: Mapping[str, Any], name: str, *shape: int) -> np.ndarray:
    """Returns positions in m, brought back to within `REACH` of the origin."""
    array = numbers(table, name, *shape)
    return array if not array.size or np.abs(array).max() <= REACH else np.clip(array, -REACH, REACH)


def indices(table: Mapping[str, Any], name: str, below: int, *, columns: int | None = None, most: int) -> np.ndarray:
    """Returns whole numbers from 0 to `below` - 1, [n] or [n, columns] with n <= `most`."""
    array = np.asarray(table[name])
    shape = array.shape[:1] if columns is None else (*array.shape[:1], columns)
    if array.ndim == 0 or array.shape != shape or len(array) > most:
        raise ValueError(f"{name} has shape {list(array.shape)}; expected {['n', columns][: len(shape)]}, n <= {most}")
    if array.size and (array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= below):
        raise ValueError(
            f"{name} holds {array.dtype} up to {array.max()}; expected whole numbers from 0 to {below - 1}"
        )
    return array


def index(value: Any, below: int) -> int:
    """Returns a whole number from 0 to `below` - 1."""
    if type(value) is not int or not 0 <= value < below:
        raise ValueError(f"an index is {value!r:.80}; expected a whole number from 0 to {below - 1}")
    return value


def number(value: Any) -> float:
    """Returns a finite number."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"a number is {value!r:.80}; expected a finite one")
    return float(value)


def text(value: Any) -> str:
    """Returns a text of at most `MAX_TEXT` characters."""
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise ValueError(f"a {type(value).__name__} stands where a text of at most {MAX_TEXT} characters belongs")
    return value


def texts(value: Any, most: int) -> tuple[str, ...]:
    """Returns a list of at most `most` texts."""
    return tuple(text(item) for item in items(value, most))


def items(value: Any, most: int) -> Sequence[Any]:
    """Returns a list with at most `most` members."""
    if not isinstance(value, (list, tuple)) or len(value) > most:
        found = f"{len(value)} members" if isinstance(value, (list, tuple)) else f"a {type(value).__name__}"
        raise ValueError(f"a list of at most {most} members was expected; this is {found}")
    return value


def table(value: Any, most: int = MAX_NAMED) -> Mapping[str, Any]:
    """Returns a mapping with at most `most` entries under texts."""
    if not isinstance(value, Mapping) or len(value) > most:
        found = f"{len(value)} entries" if isinstance(value, Mapping) else f"a {type(value).__name__}"
        raise ValueError(f"a mapping of at most {most} names was expected; this is {found}")
    for name in value:
        text(name)
    return value
