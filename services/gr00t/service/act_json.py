"""`POST /act` as GR00T's HTTP clients speak it: JSON with arrays in json_numpy's form.

Request  {"observation": {"video.<camera>": A, "state.<name>": A, "annotation.…": text or [text]}[, "config": {}]}, with
one time step: video uint8 [1, H, W, 3], state [1, n]; a leading batch axis of 1 is accepted and returned.
Answer   {"action.<name>": A}, float32 [T, n]. A request in {"encoded": "<the request as JSON>"} gets a plain answer, as
upstream does; for an invalid request upstream's HTTP 500 is a 422 here that names the error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from services.gr00t.service.layout import Layout
from vla_contract import ActionChunk, InvalidObservation, Observation, PolicyInfo
from vla_contract.protocol.act_json import loads, to_json
from vla_contract.protocol.errors import did_you_mean, shorten
from vla_contract.server.service import DecodeAct

_BY_NAME = {"type": "object", "additionalProperties": True}
HEALTH = {"/health": {"status": "healthy", "model": "GR00T"}}  # as upstream's server answers its clients' probe
_PLAIN = {
    "type": "object",
    "required": ["observation"],
    "properties": {"observation": _BY_NAME, "config": {"type": ["object", "null"]}},
}
_ENCODED = {"type": "object", "required": ["encoded"], "properties": {"encoded": {"type": "string"}}}
SCHEMAS = ({"anyOf": [_PLAIN, _ENCODED]}, _BY_NAME)  # of a request and its answer, for /openapi.json


def decoder(layout: Layout) -> DecodeAct:
    """Return the function that reads a body of `/act` for this layout, as `create_app` takes it."""

    def decode_act(body: bytes, info: PolicyInfo, session: str) -> tuple[Observation, Callable[[ActionChunk], bytes]]:
        observation, batched = decode(body, layout, session)
        return observation, lambda chunk: encode(chunk, layout, batched)

    return decode_act


def decode(body: bytes, layout: Layout, session: str) -> tuple[Observation, bool]:
    """Return the observation of a body, and whether it is a batch of one. Raises InvalidObservation."""
    values = _values(loads(body))
    embodiment = layout.embodiment
    cameras, names = embodiment.cameras.values(), [part.name for part in layout.state]
    keys = [*(f"video.{name}" for name in cameras), *(f"state.{name}" for name in names), embodiment.language]
    for key in values:
        if key not in keys:
            raise InvalidObservation(f"unknown key {str(key)[:80]!r} in the observation{did_you_mean(key, keys)}")
    for key in keys:
        if key not in values:
            raise InvalidObservation(
                f"the observation has no {key!r}; embodiment {embodiment.name!r} takes {', '.join(keys)}"
            )
    videos = {camera: _array(values, f"video.{name}", 4) for camera, name in embodiment.cameras.items()}
    parts = []
    for part in layout.state:
        key = f"state.{part.name}"
        value, is_batch = _array(values, key, 2)
        if value.dtype.kind not in "fiu" or value.shape[1] != part.size:
            raise InvalidObservation(f"{key} is {value.dtype} {list(value.shape)}; expected numbers [1, {part.size}]")
        parts.append((value[0].astype(np.float32), is_batch))
    batched = [is_batch for _, is_batch in [*videos.values(), *parts]]
    if any(batched) and not all(batched):
        raise InvalidObservation("only some arrays have a batch dimension; send all arrays with it, or none")
    text = values[embodiment.language]
    while isinstance(text, list) and len(text) == 1:
        text = text[0]
    if not isinstance(text, str):
        raise InvalidObservation(
            f"{embodiment.language} is a {type(text).__name__}; expected a string, or a list of one"
        )
    observation = Observation(
        images={camera: np.ascontiguousarray(video[0]) for camera, (video, _) in videos.items()},
        state=np.concatenate([part for part, _ in parts]),
        instruction=text,
        session=session,
        step=0,
    )
    return observation, batched[0]


def encode(chunk: ActionChunk, layout: Layout, batched: bool) -> bytes:
    """Return the chunk in upstream's format: named arrays [T, n], or [1, T, n] for a batch of one."""
    actions = chunk.actions[None] if batched else chunk.actions
    return json.dumps({name: to_json(part) for name, part in layout.named_actions(actions).items()}).encode()


def _values(payload: Any) -> Mapping[str, Any]:
    if isinstance(payload, dict) and set(payload) == {"encoded"} and isinstance(payload["encoded"], str):
        payload = loads(payload["encoded"])
    if not isinstance(payload, dict) or not isinstance(payload.get("observation"), dict):
        received = shorten(sorted(payload)) if isinstance(payload, dict) else type(payload).__name__
        raise InvalidObservation(
            f"the body has {received}; expected {{'observation': {{'video.…', 'state.…', 'annotation.…'}}}}, as GR00T's"
            " HTTP clients send it; OpenVLA's format has one image and no state, which is not enough for this policy"
        )
    for name in payload:
        if name not in ("observation", "config"):
            raise InvalidObservation(f"unknown field {name[:80]!r}{did_you_mean(name, ('observation', 'config'))}")
    if payload.get("config"):
        raise InvalidObservation(
            f"config {shorten(payload['config'])} is not supported; the service's settings are in GET /v1/info"
        )
    return payload["observation"]


def _array(values: Mapping[str, Any], key: str, ndim: int) -> tuple[np.ndarray, bool]:
    """Return the value of one time step [1, …] with `ndim` dimensions, and whether it was a batch of one."""
    value = values[key]
    if not isinstance(value, np.ndarray):
        kind = type(value).__name__
        raise InvalidObservation(f"{key} is a {kind}; expected an array of {ndim} dimensions in json_numpy's form")
    batched = value.ndim == ndim + 1
    if batched and len(value) != 1:
        raise InvalidObservation(
            f"{key} is a batch of {len(value)}; send one observation per request, the service batches requests itself"
        )
    value = value[0] if batched else value
    if value.ndim != ndim or len(value) != 1:
        raise InvalidObservation(f"{key} has shape {list(np.shape(values[key]))}; expected one time step: [1, …]")
    return value, batched
