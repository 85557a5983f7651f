"""The bodies of `/v1/act` and `/v1/reset`: types to message and back, and whether a policy can work with them."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import msgpack
import numpy as np

from vla_contract.protocol.codec import encode_special, pack, unpack
from vla_contract.protocol.errors import InvalidObservation, did_you_mean
from vla_contract.protocol.info import PolicyInfo
from vla_contract.protocol.parts import format_parts
from vla_contract.protocol.problems import Problem
from vla_contract.protocol.types import MAX_SESSION, ActionChunk, Observation

_FIELDS = tuple(field.name for field in dataclasses.fields(Observation))
_REQUIRED = ("images", "instruction", "session", "step")


def encode_observation(observation: Observation) -> bytes:
    """Return the body of `POST /v1/act`; fields that are None are left out."""
    named = ((name, getattr(observation, name)) for name in _FIELDS)
    return pack({name: value for name, value in named if value is not None})


def decode_observation(body: bytes, privileged: bool = True) -> Observation:
    """Return the observation of a body, with or without its privileged state. Raises InvalidObservation."""
    fields = _mapping(unpack(body), "an observation")
    if not privileged:
        fields.pop("privileged", None)
    for name in fields:
        if name not in _FIELDS:
            raise InvalidObservation(f"unknown field {name[:80]!r} in the observation{did_you_mean(name, _FIELDS)}")
    for name in _REQUIRED:
        if name not in fields:
            raise InvalidObservation(f"the observation has no {name!r}; expected {', '.join(_REQUIRED)}")
    fields.setdefault("state", None)
    return Observation(**fields)


def encode_chunk(chunk: ActionChunk, timings_ms: Callable[[], Mapping[str, float]] | None = None) -> bytes:
    """Return the answer's body; `timings_ms` is called after packing, to include its time."""
    packer = msgpack.Packer(default=encode_special, use_bin_type=True, autoreset=False)
    packer.pack_map_header(2)
    packer.pack("actions")
    packer.pack(chunk.actions)
    packer.pack("timings_ms")
    packer.pack({**chunk.timings_ms, **(timings_ms() if timings_ms else {})})
    packed: bytes = packer.bytes()
    return packed


def decode_chunk(body: bytes) -> ActionChunk:
    """Decode a server's chunk. Raises ValueError if it is invalid."""
    fields = _mapping(unpack(body), "an action chunk")
    actions = fields.get("actions")
    if not isinstance(actions, np.ndarray):
        raise InvalidObservation(f"the answer's actions are a {type(actions).__name__}; expected an array")
    return ActionChunk(actions, fields.get("timings_ms", {}))


def decode_reset(body: bytes) -> tuple[str, bool]:
    """Decode a body of `POST /v1/reset`: (session, False) or (prefix of sessions, True)."""
    fields = _mapping(unpack(body), "a reset")
    name = fields.get("session", fields.get("prefix"))
    if len(fields) != 1 or not isinstance(name, str) or not 0 < len(name) <= MAX_SESSION:
        names = [name[:80] for name in sorted(fields)[:8]]
        raise InvalidObservation(
            f"the reset has the fields {names}; expected {{'session': name}} or {{'prefix': prefix}}"
        )
    return name, "prefix" in fields


def _mapping(tree: Any, kind: str) -> dict[str, Any]:
    if not isinstance(tree, dict):
        raise InvalidObservation(f"the body is a {type(tree).__name__}; expected a map with the fields of {kind}")
    return tree


def check_needs(observation: Observation, info: PolicyInfo) -> None:
    """Raise InvalidObservation, or Problem with the known keys, if the policy cannot use the observation."""
    for camera in info.cameras:
        if camera not in observation.images:
            sent = ", ".join(sorted(observation.images)) or "none"
            raise InvalidObservation(f"no image of camera {camera!r} (sent: {sent}); policy {info.name!r} needs it")
        size = observation.images[camera].shape[:2]
        if info.image_hw is not None and size != info.image_hw:
            raise InvalidObservation(
                f"images[{camera!r}] is {size[0]}x{size[1]}; policy {info.name!r} takes "
                f"{info.image_hw[0]}x{info.image_hw[1]} (height x width)"
            )
    state = observation.state
    if info.needs_state and (state is None or len(state) != info.state_size):
        received = "missing" if state is None else f"{len(state)} numbers"
        raise InvalidObservation(
            f"state is {received}; policy {info.name!r} needs {info.state_size} as float32: {format_parts(info.state)}"
        )
    if info.needs_privileged and observation.privileged is None:
        raise InvalidObservation(f"privileged is missing; policy {info.name!r} works from the simulator's state")
    key, keys = observation.unnorm_key, list(info.unnorm_keys)
    if key is None and len(keys) > 1:
        detail = f"unnorm_key is missing; policy {info.name!r} has several, choose one of {', '.join(keys)}"
        raise Problem("invalid-observation", detail, unnorm_keys=keys)
    if key is not None and key not in keys:
        detail = f"unknown unnorm_key {key!r:.202}{did_you_mean(key, keys)}"
        raise Problem("invalid-observation", detail, unnorm_keys=keys)
