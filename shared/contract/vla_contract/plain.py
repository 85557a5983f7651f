"""Plain trees: what may travel inside `privileged` and, at the bottom, in any message.

A plain tree is made of dict (with str keys), list, str, int, float, bool, None, numpy scalars and arrays whose
dtype is on the allow-list. Nothing else is encoded or accepted, so nothing can run code on being read.
"""

from collections.abc import Mapping

import numpy as np

from vla_contract.errors import InvalidObservation

# name on the wire -> dtype; little-endian only, no object, no structured, no text
DTYPES = {
    dtype.str: dtype
    for dtype in map(np.dtype, ("|b1", "|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8"))
}
MAX_DEPTH = 12
MAX_ITEMS = 4096  # in one dict or list
MAX_NDIM = 8
_SCALARS = (str, int, float, bool, type(None), np.bool_, np.integer, np.floating)


def check_plain(value: object, path: str = "value", depth: int = 0) -> None:
    """Raises InvalidObservation naming the path of the first thing that is not part of a plain tree."""
    if isinstance(value, np.ndarray):
        wire_dtype(value.dtype, path)
        if value.ndim > MAX_NDIM:
            raise InvalidObservation(f"{path} has {value.ndim} dimensions; expected at most {MAX_NDIM}")
    elif isinstance(value, (Mapping, list, tuple)):
        if depth >= MAX_DEPTH:
            raise InvalidObservation(f"{path} is nested deeper than {MAX_DEPTH} levels")
        if len(value) > MAX_ITEMS:
            raise InvalidObservation(f"{path} has {len(value)} items; expected at most {MAX_ITEMS}: send an array")
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in items:
            if isinstance(value, Mapping) and not isinstance(key, str):
                raise InvalidObservation(f"{path} has the key {key!r}; expected texts as keys")
            check_plain(item, f"{path}[{key!r}]", depth + 1)
    elif not isinstance(value, _SCALARS):
        raise InvalidObservation(
            f"{path} is a {type(value).__name__}; expected dict, list, str, number, bool, None or ndarray"
        )


def wire_dtype(dtype: np.dtype, path: str = "array") -> str:
    """Returns the little-endian name of an allowed dtype ("<f4"), whatever its byte order in memory."""
    name = dtype.newbyteorder("<").str
    if name not in DTYPES:
        raise InvalidObservation(f"{path} has dtype {dtype}; expected one of {', '.join(DTYPES)}")
    return name
