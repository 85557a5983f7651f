"""Validate the parts of a privileged state from any client: type, shape, finite numbers, bounded sizes.

All raise ValueError naming the part. Sizes are bounded so that no state costs more than a real scene.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MAX_VALUE = 1e10  # MuJoCo rejects larger numbers (mjMAXVAL)
REACH = 20.0  # m; positions beyond it (fallen objects) are clipped
MAX_BODIES, MAX_SHAPES, MAX_NAMED = 512, 4096, 512  # a LIBERO scene has up to 40, 200 and 60
MAX_GOALS, MAX_CONTACTS = 32, 8192
MAX_TEXT = 1000  # characters


def numbers(table: Mapping[str, Any], name: str, *shape: int, limit: float = MAX_VALUE) -> np.ndarray:
    """Return `table[name]` as float64 of that shape, every number within ±`limit`."""
    array = np.asarray(table[name], dtype=np.float64)
    if array.shape != shape:
        raise ValueError(f"{name} has shape {list(array.shape)}; expected {list(shape)}")
    if array.size and not float(np.abs(array).max()) <= limit:  # NaN is not <= either
        raise ValueError(f"{name} must be within ±{limit:g}, got {array.flat[np.abs(array).argmax()]}")
    return array


def positions(table: Mapping[str, Any], name: str, *shape: int) -> np.ndarray:
    """Return positions in m, clipped to within `REACH` of the origin."""
    return np.clip(numbers(table, name, *shape), -REACH, REACH)


def indices(table: Mapping[str, Any], name: str, below: int, *, columns: int | None = None, limit: int) -> np.ndarray:
    """Return integers from 0 to `below` - 1, [n] or [n, columns] with n <= `limit`."""
    array = np.asarray(table[name])
    shape = array.shape[:1] if columns is None else (*array.shape[:1], columns)
    if array.ndim == 0 or array.shape != shape or len(array) > limit:
        raise ValueError(f"{name} has shape {list(array.shape)}; expected {['n', columns][: len(shape)]}, n <= {limit}")
    if array.size and (array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= below):
        raise ValueError(f"{name} must be integers from 0 to {below - 1}, got {array.dtype} up to {array.max()}")
    return array


def bounds(value: Any) -> tuple[float, ...]:
    """Return the numbers of a range."""
    return tuple(numbers({"range": value}, "range", len(items(value, 8))).tolist())


def text(value: Any) -> str:
    """Return a text of at most `MAX_TEXT` characters."""
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise ValueError(f"expected a text of at most {MAX_TEXT} characters, got a {type(value).__name__}")
    return value


def texts(value: Any, limit: int) -> tuple[str, ...]:
    """Return a list of at most `limit` texts."""
    return tuple(text(item) for item in items(value, limit))


def items(value: Any, limit: int) -> Sequence[Any]:
    """Return a list with at most `limit` members."""
    if not isinstance(value, (list, tuple)) or len(value) > limit:
        raise ValueError(f"expected a list of at most {limit} members, got a {type(value).__name__}")
    return value


def table(value: Any, limit: int = MAX_NAMED) -> Mapping[str, Any]:
    """Return a mapping with at most `limit` entries, whose keys are texts."""
    if not isinstance(value, Mapping) or len(value) > limit:
        raise ValueError(f"expected a mapping of at most {limit} names, got a {type(value).__name__}")
    for name in value:
        text(name)
    return value
