"""Plain trees: the values allowed in `privileged` and in any message.

A plain tree is made of dict (with str keys), list, str, int, float, bool, None, numpy scalars and arrays whose
dtype is on the allow-list. Nothing else is encoded or accepted, so nothing can run code on being read.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from vla_contract.protocol.errors import InvalidObservation

# name on the wire -> dtype; little-endian only, no object, no structured, no text
DTYPES = {
    dtype.str: dtype
    for dtype in map(np.dtype, ("|b1", "|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8"))
}
MAX_DEPTH = 12
MAX_ITEMS = 4096  # in one dict or list
MAX_NDIM = 8
_SCALARS = (str, int, float, bool, type(None), np.bool_, np.integer, np.floating)
_COMMON = frozenset({str, int, float, bool, type(None)})
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def check_plain(value: object, path: str = "value") -> None:
    """Raise InvalidObservation naming the path of the first value that is not allowed."""
    if not _is_plain(value, 0):
        _name_fault(value, path, 0)


def wire_dtype(dtype: np.dtype, path: str = "array") -> str:
    """Return the little-endian name of an allowed dtype ("<f4"), whatever its byte order in memory."""
    name: str = _NAMES.get(dtype) or dtype.newbyteorder("<").str
    if name not in DTYPES:
        raise InvalidObservation(f"{path} has dtype {dtype}; expected one of {', '.join(DTYPES)}")
    return name


def _is_plain(value: Any, depth: int) -> bool:
    """Return whether a tree is plain. Called at both ends for every step, so it builds no messages."""
    kind = type(value)
    if kind in _COMMON:
        return True
    if kind is np.ndarray:
        return value.dtype in _NAMES and value.ndim <= MAX_NDIM
    if depth >= MAX_DEPTH or kind not in (dict, list, tuple) or len(value) > MAX_ITEMS:
        return False
    if kind is dict:
        return all(type(key) is str for key in value) and all(_is_plain(item, depth + 1) for item in value.values())
    return all(_is_plain(item, depth + 1) for item in value)


def _name_fault(value: object, path: str, depth: int) -> None:
    if isinstance(value, np.ndarray):
        wire_dtype(value.dtype, path)
        if value.ndim > MAX_NDIM:
            raise InvalidObservation(f"{path} has {value.ndim} dimensions; expected at most {MAX_NDIM}")
    elif isinstance(value, (Mapping, list, tuple)):
        if depth >= MAX_DEPTH:
            raise InvalidObservation(f"{path} is nested deeper than {MAX_DEPTH} levels")
        if len(value) > MAX_ITEMS:
            raise InvalidObservation(f"{path} has {len(value)} items; expected at most {MAX_ITEMS}: send an array")
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            if isinstance(value, Mapping) and not isinstance(key, str):
                raise InvalidObservation(f"{path} has the key {key!r}; expected texts as keys")
            _name_fault(item, f"{path}[{key!r}]", depth + 1)
    elif not isinstance(value, _SCALARS):
        raise InvalidObservation(
            f"{path} is a {type(value).__name__}; expected dict, list, str, number, bool, None or ndarray"
        )
