"""What the contract accepts, said a second time: plain rules over the raw bytes, sharing no code with the services.

`acceptable_v1` and `acceptable_act` tell whether a body may be answered with an action. They are written from
shared/contract/README.md and docs of the types, so that a service that answers 200 to a bad body is found.
"""

from __future__ import annotations

import base64
import json
import math
import struct

import msgpack

SIZES = {"|b1": 1, "|u1": 1, "|i1": 1, "<u2": 2, "<i2": 2, "<f2": 2, "<u4": 4, "<i4": 4, "<f4": 4, "<u8": 8, "<i8": 8,
         "<f8": 8}  # fmt: skip
GREY = {"|b1": "?", "|u1": "B", "|i1": "b", "<u2": "H", "<i2": "h", "<u4": "I", "<i4": "i", "<f4": "f", "<f8": "d"}
FIELDS = {"images", "state", "instruction", "session", "step", "privileged", "unnorm_key"}
LONGEST, SIDE, TEXT, NAME = 32 * 2**20, 4096, 4096, 200


class Bad(Exception):
    """The body is not acceptable."""


def need(holds: bool, reason: str) -> None:
    if not holds:
        raise Bad(reason)


def text(value: object, limit: int, label: str) -> None:
    need(isinstance(value, str) and 0 < len(value) <= limit, label)
    try:
        value.encode()  # type: ignore[attr-defined]
    except UnicodeEncodeError as error:
        raise Bad(f"{label} is no UTF-8") from error


# --- /v1/act ------------------------------------------------------------------------------------------------


def array(value: object, label: str) -> tuple[str, list[int], bytes]:
    """Return (dtype, shape, bytes) of an array on the wire."""
    need(isinstance(value, dict) and set(value) == {"__nd__"}, f"{label} is no array")
    parts = value["__nd__"]  # type: ignore[index]
    need(isinstance(parts, list) and len(parts) == 3, f"{label} has not three parts")
    dtype, shape, raw = parts
    need(isinstance(dtype, str) and dtype in SIZES, f"{label} has dtype {dtype!r}")
    need(isinstance(shape, list) and len(shape) <= 8, f"{label} has shape {shape!r}")
    need(all(type(side) is int and 0 <= side < 2**31 for side in shape), f"{label} has shape {shape!r}")
    need(isinstance(raw, bytes) and math.prod(shape) * SIZES[dtype] == len(raw), f"{label} has other bytes")
    return dtype, shape, raw


def plain(value: object, depth: int = 0) -> None:
    """Reject what may not stand inside `privileged`."""
    if value is None or isinstance(value, (bool, int, float)):
        return
    if isinstance(value, str):
        return
    need(isinstance(value, (dict, list)), f"a {type(value).__name__} in privileged")
    if isinstance(value, dict) and set(value) == {"__nd__"}:
        array(value, "an array in privileged")
        return
    need(depth < 12 and len(value) <= 4096, "privileged is too deep or too wide")  # type: ignore[arg-type]
    if isinstance(value, dict):
        need(all(isinstance(key, str) for key in value), "a key that is no text")
    for item in value.values() if isinstance(value, dict) else value:  # type: ignore[union-attr]
        plain(item, depth + 1)


def acceptable_v1(body: bytes, info: dict) -> str | None:
    """Return why a policy that describes itself so must refuse this body of /v1/act; None if it may answer."""
    try:
        try:
            tree = msgpack.unpackb(body, strict_map_key=False)
        except Exception as error:
            raise Bad(f"no msgpack: {type(error).__name__}") from error
        need(isinstance(tree, dict) and set(tree) <= FIELDS, "no observation, or unknown fields")
        need({"images", "instruction", "session", "step"} <= set(tree), "a field is missing")
        need(isinstance(tree["images"], dict), "images is no map")
        images = {name: _image(name, image) for name, image in tree["images"].items()}
        if tree.get("state") is not None:
            dtype, shape, raw = array(tree["state"], "state")
            need(dtype == "<f4" and len(shape) == 1, "state is no float32 [n]")
            need(all(map(math.isfinite, struct.unpack(f"<{shape[0]}f", raw))), "state is not finite")
        text(tree["instruction"], TEXT, "instruction")
        text(tree["session"], NAME, "session")
        need(type(tree["step"]) is int and 0 <= tree["step"] < 2**31, "step")
        if tree.get("privileged") is not None:
            need(isinstance(tree["privileged"], dict), "privileged is no map")
            plain(tree["privileged"])
        _needs(info, images, tree.get("state"), tree.get("privileged"), tree.get("unnorm_key"))
    except Bad as bad:
        return str(bad)
    return None


def _image(name: object, image: object) -> tuple[int, int]:
    text(name, NAME, "a camera's name")
    dtype, shape, _ = array(image, "a picture")
    need(dtype == "|u1" and len(shape) == 3 and shape[2] == 3, f"a picture of {dtype} {shape}")
    need(0 < min(shape[:2]) <= max(shape[:2]) <= SIDE, f"a picture of {shape}")
    return shape[0], shape[1]


def _needs(info: dict, images: dict, state: object, privileged: object, key: object) -> None:
    for camera in info["cameras"]:
        need(camera in images, "the policy's camera is missing")
        need(not info["image_hw"] or images[camera] == tuple(info["image_hw"]), "a picture of another size")
    size = sum(part["size"] for part in info["state"])
    need(not size or (state is not None and array(state, "state")[1] == [size]), "state is missing or of another size")
    need(not info["needs_privileged"] or privileged is not None, "privileged is missing")
    keys = info["unnorm_keys"]
    need(key in keys if key is not None else len(keys) <= 1, "unnorm_key")


# --- /act ---------------------------------------------------------------------------------------------------


def acceptable_act(body: bytes, info: dict) -> str | None:
    """Return why a policy that describes itself so must refuse this body of /act; None if it may answer."""
    try:
        need(not info["needs_privileged"] and not info["stateful"] and not info["state"], "cannot serve /act")
        payload = _json(body)
        need(isinstance(payload, dict), "no object")
        if "encoded" in payload:
            need(set(payload) == {"encoded"} and isinstance(payload["encoded"], str), "encoded is not alone")
            payload = _json(payload["encoded"])
            need(isinstance(payload, dict), "no object inside")
        need({"image", "instruction"} <= set(payload), "a field is missing")
        dtype, shape, raw = _numpy(payload["image"])
        need(_is_colour(dtype, shape) or _is_grey(dtype, shape, raw), f"a picture of {dtype} {shape}")
        need(0 < min(shape[:2]) <= max(shape[:2]) <= SIDE, f"a picture of {shape}")
        text(payload["instruction"], TEXT, "instruction")
        if payload.get("state") is not None:
            _numpy(payload["state"])
        _needs({**info, "image_hw": None, "cameras": []}, {}, None, None, payload.get("unnorm_key"))
    except Bad as bad:
        return str(bad)
    return None


def _is_colour(dtype: str, shape: list[int]) -> bool:
    return dtype == "|u1" and len(shape) == 3 and shape[2] in (2, 3, 4)


def _is_grey(dtype: str, shape: list[int], raw: bytes) -> bool:
    if len(shape) != 2 or dtype not in GREY:
        return False
    return all(0 <= value <= 255 for value in struct.unpack(f"<{math.prod(shape)}{GREY[dtype]}", raw))


def _json(data: bytes | str) -> object:
    def reject(name: str) -> None:
        raise Bad(f"{name} is no JSON")

    try:
        return json.loads(data, parse_constant=reject)
    except (ValueError, RecursionError) as error:
        raise Bad(f"no JSON: {type(error).__name__}") from error


def _numpy(value: object) -> tuple[str, list[int], bytes]:
    need(isinstance(value, dict) and {"__numpy__", "dtype", "shape"} <= set(value), "no array of json_numpy")
    try:
        raw = base64.b64decode(value["__numpy__"], validate=True)  # type: ignore[index]
    except (ValueError, TypeError) as error:
        raise Bad("no base64") from error
    return array({"__nd__": [value["dtype"], value["shape"], raw]}, "an array of json_numpy")  # type: ignore[index]
