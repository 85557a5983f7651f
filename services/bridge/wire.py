"""openpi's messages: msgpack in which an array is a map with bytes for keys.

openpi@15a9616a packages/openpi-client/src/openpi_client/msgpack_numpy.py: {b"__ndarray__": True, b"data": …,
b"dtype": …, b"shape": …}, and {b"__npgeneric__": True, b"data": …, b"dtype": …} for a numpy scalar. What arrives is
checked against the contract's limits (`vla_contract.protocol.codec`) before arrays are built; nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np

from vla_contract.protocol import codec
from vla_contract.protocol.errors import InvalidObservation, shorten
from vla_contract.protocol.json_body import check_depth
from vla_contract.protocol.plain import DTYPES, wire_dtype

MAX_BYTES = codec.MAX_BYTES  # of one message
_ARRAY, _SCALAR, _DATA, _DTYPE, _SHAPE = b"__ndarray__", b"__npgeneric__", b"data", b"dtype", b"shape"


class ProtocolError(ValueError):
    """A frame is not a valid message of the protocol, or exceeds its limits."""


def pack(message: dict[str, Any]) -> bytes:
    """Return a dict with string keys as a message. Raises InvalidObservation for a value that cannot be sent."""
    return packed(message, lambda dtype, data, shape: {_ARRAY: True, _DATA: data, _DTYPE: dtype, _SHAPE: shape})


def packed(message: dict[str, Any], array: Callable[[str, bytes, tuple[int, ...]], dict]) -> bytes:
    """Like `pack`, for a protocol whose arrays `array` builds from dtype, bytes and shape."""

    def encode(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            name = wire_dtype(value.dtype)
            return array(name, np.ascontiguousarray(value, dtype=DTYPES[name]).tobytes(), value.shape)
        if isinstance(value, (np.bool_, np.integer, np.floating)):
            return value.item()
        raise TypeError(f"a {type(value).__name__}")

    try:
        return msgpack.packb(message, default=encode)
    except (TypeError, OverflowError, ValueError) as error:
        raise InvalidObservation(f"this value cannot be sent: {error}") from error


def _decode_openpi(items: dict) -> Any:
    """Return the array or number that openpi encodes as a map; None for a plain map."""
    if _ARRAY in items:
        return array(items.get(_DATA), items.get(_DTYPE), items.get(_SHAPE))
    if _SCALAR not in items:
        return None
    data, dtype = items.get(_DATA), items.get(_DTYPE)
    if type(data) not in (bool, int, float) or dtype not in DTYPES:
        got = f"data is a {type(data).__name__} and has dtype {shorten(dtype, 60)}"
        raise ProtocolError(f"a numpy scalar's {got}; expected a number of one of {', '.join(DTYPES)}")
    return data


def array(data: object, dtype: object, shape: object) -> np.ndarray:
    """Return a read-only view of the bytes. Raises InvalidObservation for an invalid dtype, shape or size."""
    return codec.decode_array([dtype, shape, data])


class _Hooks(codec.CountingHooks):
    def __init__(self, special: Callable[[dict], Any]):
        super().__init__()
        self._special = special

    def on_dict(self, items: dict) -> Any:
        self.take(items)
        value = self._special(items)
        if value is not None:
            return value
        for key in items:
            if type(key) is not str:
                raise ProtocolError(f"the message has the key {shorten(key, 60)}; expected strings as keys")
        return items


def unpack(frame: bytes | str, special: Callable[[dict], Any] = _decode_openpi) -> dict[str, Any]:
    """Return the dict of a frame; arrays in it are read-only views of their bytes. `special` decodes a map that
    stands for a value in the protocol, and returns None for a plain map.

    Raises ProtocolError for a text frame, a pickle, and any other invalid message.
    """
    if isinstance(frame, str):
        raise ProtocolError(f"received a text frame instead of a message: {short(frame)}")
    if len(frame) > MAX_BYTES:
        raise ProtocolError(f"the message has {len(frame)} bytes; expected at most {MAX_BYTES}")
    hooks = _Hooks(special)
    try:
        value = msgpack.unpackb(frame, object_hook=hooks.on_dict, list_hook=hooks.on_list, **codec.LIMITS)
        check_depth(value)
    except ProtocolError:
        raise
    except InvalidObservation as error:
        raise ProtocolError(str(error)) from error
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        is_pickle = len(frame) > 2 and frame[0] == 0x80 and 2 <= frame[1] <= 5 and frame[-1:] == b"."
        kind = "a pickle, which is not accepted" if is_pickle else "not a msgpack message"
        raise ProtocolError(f"the frame is {kind} ({str(error) or type(error).__name__})") from error
    if type(value) is not dict:
        raise ProtocolError(f"the message is a {type(value).__name__}; expected a map")
    return value


def short(text: str, limit: int = 300) -> str:
    """Return the last line of a foreign text, printable and cut to `limit`: the error of a traceback."""
    lines = [line.strip() for line in text[-65536:].splitlines() if line.strip()]
    line = "".join(sign if sign.isprintable() else " " for sign in (lines[-1] if lines else "(an empty text)"))
    return line if len(line) <= limit else line[: limit - 1] + "…"
