"""msgpack with arrays: an ndarray travels as {"__nd__": [dtype, shape, bytes]}.

Encoding hands the array's own memory to the packer; decoding views the received bytes (read-only arrays).
Sizes, nesting and the number of containers are bounded before anything large is built from a message.
"""

from collections.abc import Sized
from typing import Any

import msgpack
import numpy as np

from vla_contract.protocol.errors import InvalidObservation, shorten
from vla_contract.protocol.plain import DTYPES, MAX_ITEMS, MAX_NDIM, check_plain, wire_dtype

MEDIA_TYPE = "application/msgpack"
MEDIA_TYPES = (MEDIA_TYPE, "application/x-msgpack", "application/vnd.msgpack")
MAX_BYTES = 32 * 2**20  # of one message
MAX_TEXT = 64 * 2**10  # bytes of one text
MAX_CONTAINERS = 20_000  # dicts and lists in one message
MAX_VALUES = 200_000  # members of all of them: each takes up to twenty times its bytes
_ND = "__nd__"
LIMITS = {
    "strict_map_key": True,
    "max_str_len": MAX_TEXT,
    "max_bin_len": MAX_BYTES,
    "max_array_len": MAX_ITEMS,
    "max_map_len": MAX_ITEMS,
    "max_ext_len": 0,
}


def pack(value: Any) -> bytes:
    """Encode a plain tree. Raises InvalidObservation for other values.

    bytes and keys other than text are encoded, but rejected on arrival.
    """
    try:
        packed: bytes = msgpack.packb(value, default=encode_special, use_bin_type=True)
    except (TypeError, OverflowError, ValueError) as error:
        check_plain(value)  # raises with the path, if it can
        raise InvalidObservation(f"this value cannot be sent: {error}") from error
    return packed


def unpack(data: bytes) -> Any:
    """Decode a message; its arrays are read-only views of the bytes.

    Raises InvalidObservation for malformed, oversized or too deeply nested data, unknown dtypes, object dtypes, a shape
    that does not fit its bytes, extension types and texts that are not UTF-8.
    """
    if len(data) > MAX_BYTES:
        raise InvalidObservation(f"the message has {len(data)} bytes; expected at most {MAX_BYTES}")
    count = CountingHooks()
    try:
        return msgpack.unpackb(data, object_hook=count.on_dict, list_hook=count.on_list, **LIMITS)
    except InvalidObservation:
        raise
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        reason = str(error) or type(error).__name__
        raise InvalidObservation(f"the body is not a valid msgpack message: {reason}") from error


def encode_special(value: Any) -> Any:
    """Return the msgpack value for an array, a numpy scalar or a mapping."""
    if isinstance(value, np.ndarray):
        name = wire_dtype(value.dtype)
        flat = np.ascontiguousarray(value, dtype=DTYPES[name])  # copies only for another memory or byte order
        return {_ND: [name, value.shape, flat.data if flat.size else b""]}
    if isinstance(value, (np.bool_, np.integer, np.floating)):
        return value.item()
    if hasattr(value, "keys") and hasattr(value, "__getitem__"):
        return {key: value[key] for key in value}
    raise TypeError(f"a {type(value).__name__}")


class CountingHooks:
    """Hooks of msgpack that count containers: a small message must not decode to a large object."""

    def __init__(self) -> None:
        self.left, self.values_left = MAX_CONTAINERS, MAX_VALUES

    def on_list(self, items: list[Any]) -> list[Any]:
        self.take(items)
        return items

    def on_dict(self, items: dict[Any, Any]) -> Any:
        self.take(items)
        if len(items) == 1 and _ND in items:
            return decode_array(items[_ND])
        if not all(type(key) is str for key in items):
            raise InvalidObservation("the message has a key that is not a text")
        return items

    def take(self, items: Sized) -> None:
        self.left -= 1
        self.values_left -= len(items)
        if self.left < 0:
            raise InvalidObservation(f"the message has more than {MAX_CONTAINERS} dicts and lists")
        if self.values_left < 0:
            raise InvalidObservation(f"the message's dicts and lists have more than {MAX_VALUES} values; send arrays")


def decode_array(parts: Any) -> np.ndarray:
    """Return the array of [dtype, shape, bytes] as a read-only view of the bytes."""
    if type(parts) is not list or len(parts) != 3:
        raise InvalidObservation(f"{_ND} is {shorten(parts)}; expected [dtype, shape, bytes]")
    name, shape, raw = parts
    dtype = DTYPES.get(name) if type(name) is str else None
    if dtype is None:
        raise InvalidObservation(f"an array has dtype {shorten(name)}; expected one of {', '.join(DTYPES)}")
    if type(raw) is not bytes:
        raise InvalidObservation(f"an array's data is {shorten(raw)}; expected bytes")
    return view(raw, dtype, shape)


def view(raw: bytes, dtype: np.dtype, shape: Any) -> np.ndarray:
    """Return bytes as a read-only array. Raises InvalidObservation unless the shape accounts for all of them."""
    if type(shape) is not list or len(shape) > MAX_NDIM:
        raise InvalidObservation(f"an array has shape {shorten(shape)}; expected a list of at most {MAX_NDIM} sizes")
    size = dtype.itemsize
    for side in shape:
        if type(side) is not int or not 0 <= side < 2**31:
            raise InvalidObservation(f"an array has shape {shorten(shape)}; expected integers >= 0")
        size *= side
    if size != len(raw):
        raise InvalidObservation(f"an array of shape {shape} came with {len(raw)} bytes; expected {size}")
    return np.frombuffer(raw, dtype).reshape(shape)
