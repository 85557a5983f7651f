"""vla-eval's messages: a msgpack map of type, payload, seq and timestamp; an array is a map, a picture a file in one.

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
from services.bridge.wire import NotTheirs
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
    """Returns the frame of a message. Raises InvalidObservation for what cannot travel."""
    told = {"type": message.type, "payload": message.payload, "seq": message.seq, "timestamp": time.time()}
    return wire.packed(told, lambda dtype, data, shape: {_ARRAY: True, _DATA: data, _DTYPE: dtype, _SHAPE: list(shape)})


def unpack(frame: bytes | str, sender_left: Callable[[], bool] = lambda: False) -> Message:
    """Returns the message of a frame. Raises NotTheirs for whatever is none, and once its sender has left."""
    budget = ImageBudget()

    def special(items: dict) -> Any:
        """Returns the array that a map stands for; None where it is a map."""
        if _IMAGE in items and items.get(_FORMAT) != "raw":
            if sender_left():
                raise NotTheirs("the sender has left")
            return _image(items, budget)
        if _ARRAY in items or _IMAGE in items:
            return wire.array(items.get(_DATA), items.get(_DTYPE), items.get(_SHAPE))
        return None

    raw = wire.unpack(frame, special)
    lacking = [name for name in ("type", "payload", "seq") if name not in raw]
    if lacking:
        raise NotTheirs(f"the message has no {lacking[0]!r}")
    kind, payload, seq = raw["type"], raw["payload"], raw["seq"]
    if kind not in TYPES:
        raise NotTheirs(f"the message is of type {shorten(kind, 60)}; expected one of {', '.join(TYPES)}")
    if type(payload) is not dict:
        raise NotTheirs(f"the payload of {kind} is a {type(payload).__name__}; expected a map")
    if type(seq) is not int:
        raise NotTheirs(f"the seq of {kind} is a {type(seq).__name__}; expected a whole number")
    return Message(kind, payload, seq)


def hello(**extra: Any) -> dict[str, Any]:
    """Returns the payload of a hello."""
    return {"harness_version": HARNESS, "protocol_version": VERSION, **extra}


def check_version(payload: dict[str, Any]) -> None:
    """Raises NotTheirs where a hello names another version of the protocol."""
    version = payload.get("protocol_version")
    if version != VERSION:
        of = f"vla-eval {shorten(payload.get('harness_version'), 20)}"
        raise NotTheirs(f"it speaks version {shorten(version, 20)} of vla-eval's protocol ({of}), not {VERSION}")


def _image(items: dict, budget: ImageBudget) -> np.ndarray:
    kind, data, shape = items.get(_FORMAT), items.get(_DATA), items.get(_SHAPE)
    if kind not in _FILES or type(data) is not bytes:
        raise NotTheirs(
            f"a picture is {shorten(kind, 20)} of a {type(data).__name__}; expected png, jpeg or raw of bytes"
        )
    try:
        with Image.open(io.BytesIO(data), formats=[_FILES[kind]]) as opened:
            if opened.mode != "RGB" or max(opened.size) > MAX_SIDE or shape != [opened.height, opened.width, 3]:
                found = f"{opened.mode} [{opened.height}, {opened.width}]"
                raise NotTheirs(f"a picture is {found} and says {shorten(shape, 60)}; expected RGB of that shape")
            budget.spend(opened.height, opened.width)
            check_scans(data if kind == "jpeg" else b"")
            return np.asarray(opened)
    except NotTheirs:
        raise
    except InvalidObservation as error:
        raise NotTheirs(str(error)) from error
    except Exception as error:  # whatever a decoder finds wrong with a file
        raise NotTheirs(f"a picture is no {kind} file ({type(error).__name__})") from error
