"""The bodies of `/v1/act` and `/v1/reset`: types to message and back."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import msgpack
import numpy as np

from vla_contract.protocol.codec import encode_special, pack, unpack
from vla_contract.protocol.errors import InvalidObservation, did_you_mean
from vla_contract.protocol.types import MAX_SESSION, ActionChunk, Observation

_FIELDS = tuple(field.name for field in dataclasses.fields(Observation))
_REQUIRED = ("images", "instruction", "session", "step")


def encode_observation(observation: Observation) -> bytes:
    """Returns the body of `POST /v1/act`; fields that are None are left out."""
    named = ((name, getattr(observation, name)) for name in _FIELDS)
    return pack({name: value for name, value in named if value is not None})


def decode_observation(body: bytes, privileged: bool = True) -> Observation:
    """Returns the observation of a body, with or without its privileged state, which is else passed over unread.

    Raises InvalidObservation for whatever is wrong with it.
    """
    fields = _mapping(unpack(body, None if privileged else "privileged"), "an observation")
    for name in fields:
        if name not in _FIELDS:
            raise InvalidObservation(f"unknown field {name[:80]!r} in the observation{did_you_mean(name, _FIELDS)}")
    for name in _REQUIRED:
        if name not in fields:
            raise InvalidObservation(f"the observation has no {name!r}; expected {', '.join(_REQUIRED)}")
    fields.setdefault("state", None)
    return Observation(**fields)


def encode_chunk(chunk: ActionChunk, timings_ms: Callable[[], Mapping[str, float]] | None = None) -> bytes:
    """Returns the answer's body; `timings_ms` is asked after the actions are packed, so it can time that too."""
    packer = msgpack.Packer(default=encode_special, use_bin_type=True, autoreset=False)
    packer.pack_map_header(2)
    packer.pack("actions")
    packer.pack(chunk.actions)
    packer.pack("timings_ms")
    packer.pack({**chunk.timings_ms, **(timings_ms() if timings_ms else {})})
    packed: bytes = packer.bytes()
    return packed


def decode_chunk(body: bytes) -> ActionChunk:
    """Returns the chunk a server sent. Raises ValueError where it is not a valid one."""
    fields = _mapping(unpack(body), "an action chunk")
    actions = fields.get("actions")
    if not isinstance(actions, np.ndarray):
        raise InvalidObservation(f"the answer's actions are a {type(actions).__name__}; expected an array")
    return ActionChunk(actions, fields.get("timings_ms", {}))


def decode_reset(body: bytes) -> tuple[str, bool]:
    """Returns the session that a body of `POST /v1/reset` names, or the prefix of some, and whether it is a prefix."""
    fields = _mapping(unpack(body), "a reset")
    name = fields.get("session", fields.get("prefix"))
    if len(fields) != 1 or not isinstance(name, str) or not 0 < len(name) <= MAX_SESSION:
        found = [name[:80] for name in sorted(fields)[:8]]
        raise InvalidObservation(
            f"the reset holds {found}; expected {{'session': name}} or {{'prefix': its beginning}}"
        )
    return name, "prefix" in fields


def _mapping(tree: Any, what: str) -> dict[str, Any]:
    if not isinstance(tree, dict):
        raise InvalidObservation(f"the body holds a {type(tree).__name__}; expected a map with the fields of {what}")
    return tree
