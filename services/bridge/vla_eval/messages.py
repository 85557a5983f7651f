"""vla-eval's messages: a msgpack map of type, payload, seq and timestamp; arrays and image files are maps in it.

vla-eval 0.8.0 vla_eval/protocol: {"__ndarray__": True, "data": …, "dtype": …, "shape": …}, and for uint8 [H, W, 3]
{"__image__": True, "format": "png", "jpeg" or "raw", "data": …, "shape": …}. What arrives is held to the bounds of
`services.bridge.wire`; an image is decoded only as the kind and the size that it says it is, and only while the
message's images keep to `vla_contract.protocol.image_budget` and its sender is connected.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from services.bridge import wire
from services.bridge.wire import ProtocolError
from vla_contract.protocol.errors import InvalidObservation, shorten
from vla_contract.protocol.image_budget import ImageBudget, check_scans

VERSION = 1  # of the protocol
HARNESS = "0.8.0"  # of the package that it was read from
HELLO, START, END = "hello", "episode_start", "episode_end"
OBSERVATION, ACTION, ERROR = "observation", "action", "error"
TYPES = (HELLO, OBSERVATION, ACTION, START, END, ERROR)
_ARRAY, _IMAGE, _FORMAT, _DATA, _DTYPE, _SHAPE = "__ndarray__", "__image__", "format", "data", "dtype", "shape"
_FILES = {"png": "PNG", "jpeg": "JPEG"}
MAX_SIDE = 4096  # pixels


@dataclass(frozen=True)
class Message:
    """`seq` of an answer is that of what it answers."""

    type: str
    payload: dict[str, Any]
    seq: int


def pack(message: Message) -> bytes:
    """Return the frame of a message. Raises InvalidObservation for a value that cannot be sent."""
    fields = {"type": message.type, "payload": message.payload, "seq": message.seq, "timestamp": time.time()}
    return wire.packed(
        fields, lambda dtype, data, shape: {_ARRAY: True, _DATA: data, _DTYPE: dtype, _SHAPE: list(shape)}
    )


def unpack(frame: bytes | str, sender_left: Callable[[], bool] = lambda: False) -> Message:
    """Return the message of a frame. Raises ProtocolError for an invalid one, and after its sender disconnected."""
    budget = ImageBudget()

    def special(items: dict) -> Any:
        """Return the array that a map encodes; None for a plain map."""
        if _IMAGE in items and items.get(_FORMAT) != "raw":
            if sender_left():
                raise ProtocolError("the sender has disconnected")
            return _image(items, budget)
        if _ARRAY in items or _IMAGE in items:
            return wire.array(items.get(_DATA), items.get(_DTYPE), items.get(_SHAPE))
        return None

    raw = wire.unpack(frame, special)
    missing = [name for name in ("type", "payload", "seq") if name not in raw]
    if missing:
        raise ProtocolError(f"the message has no {missing[0]!r}")
    kind, payload, seq = raw["type"], raw["payload"], raw["seq"]
    if kind not in TYPES:
        raise ProtocolError(f"the message is of type {shorten(kind, 60)}; expected one of {', '.join(TYPES)}")
    if type(payload) is not dict:
        raise ProtocolError(f"the payload of {kind} is a {type(payload).__name__}; expected a map")
    if type(seq) is not int:
        raise ProtocolError(f"the seq of {kind} is a {type(seq).__name__}; expected a whole number")
    return Message(kind, payload, seq)


def hello(**extra: Any) -> dict[str, Any]:
    """Return the payload of a hello."""
    return {"harness_version": HARNESS, "protocol_version": VERSION, **extra}


def check_version(payload: dict[str, Any]) -> None:
    """Raise ProtocolError if a hello has another protocol version."""
    version = payload.get("protocol_version")
    if version != VERSION:
        of = f"vla-eval {shorten(payload.get('harness_version'), 20)}"
        raise ProtocolError(f"it speaks version {shorten(version, 20)} of vla-eval's protocol ({of}), not {VERSION}")


def _image(items: dict, budget: ImageBudget) -> np.ndarray:
    kind, data, shape = items.get(_FORMAT), items.get(_DATA), items.get(_SHAPE)
    if kind not in _FILES or type(data) is not bytes:
        raise ProtocolError(
            f"an image is {shorten(kind, 20)} of a {type(data).__name__}; expected png, jpeg or raw of bytes"
        )
    try:
        with Image.open(io.BytesIO(data), formats=[_FILES[kind]]) as opened:
            if opened.mode != "RGB" or max(opened.size) > MAX_SIDE or shape != [opened.height, opened.width, 3]:
                actual = f"{opened.mode} [{opened.height}, {opened.width}]"
                raise ProtocolError(f"an image is {actual} and states {shorten(shape, 60)}; expected RGB of that shape")
            budget.spend(opened.height, opened.width)
            check_scans(data if kind == "jpeg" else b"")
            return np.asarray(opened)
    except ProtocolError:
        raise
    except InvalidObservation as error:
        raise ProtocolError(str(error)) from error
    except Exception as error:  # decoders raise many kinds
        raise ProtocolError(f"an image is not a valid {kind} file ({type(error).__name__})") from error
