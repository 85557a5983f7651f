"""`POST /act` of existing OpenVLA clients: JSON with arrays in json_numpy's form.

Request  {"image": A, "instruction": text[, "unnorm_key": text][, "state": A]}, A = {"__numpy__": base64, "dtype":
"|u1", "shape": [H, W, 3]}; answer: the chunk's first action, float64 [n], in the same form. Or both doubly encoded:
{"encoded": "<the request as JSON>"} as the only key, answered by a JSON string that holds the answer. Grey and RGBA
images, a batch of one image and nested lists of integers are accepted too.
"""

import base64
import binascii
import difflib
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from vla_contract.protocol.codec import MAX_CONTAINERS, view
from vla_contract.protocol.errors import InvalidObservation
from vla_contract.protocol.info import PolicyInfo
from vla_contract.protocol.plain import DTYPES
from vla_contract.protocol.types import ActionChunk, Observation

MEDIA_TYPE = "application/json"
MAX_FIELDS = 16  # of a body
_ND = "__numpy__"


def decode_act(body: bytes, info: PolicyInfo, session: str) -> tuple[Observation, Callable[[ActionChunk], bytes]]:
    """Return a body's observation and the function that encodes its response in the same form.

    Raises InvalidObservation if the body is invalid, or if the policy needs what such clients cannot send.
    """
    if info.needs_privileged or info.stateful:
        needs = "needs privileged simulator state, which /act cannot carry"
        if not info.needs_privileged:
            needs = "keeps state per session, and /act names no session"
        raise InvalidObservation(f"policy {info.name!r} {needs}; use POST /v1/act")
    payload = _object(loads(body))
    if "encoded" not in payload:
        return _observation(payload, info, session), encode_action
    if set(payload) != {"encoded"} or not isinstance(payload["encoded"], str):
        raise InvalidObservation(f"the body has {_names(payload)}; expected 'encoded' alone, with JSON in a text")
    inner = _object(loads(payload["encoded"]))
    return _observation(inner, info, session), lambda chunk: json.dumps(encode_action(chunk).decode()).encode()


def encode_action(chunk: ActionChunk) -> bytes:
    """Return the chunk's first action as json_numpy writes a float64 array [n]."""
    return json.dumps(to_json(chunk.actions[0].astype("<f8"))).encode()


def to_json(array: np.ndarray) -> dict[str, Any]:
    """Return an array in json_numpy's form."""
    data = base64.b64encode(np.ascontiguousarray(array)).decode("ascii")
    return {_ND: data, "dtype": array.dtype.str, "shape": list(array.shape)}


def loads(text: bytes | str) -> Any:
    """Return the JSON value with its arrays, which are read-only. Raises InvalidObservation."""
    marks = map(text.count, "[{,") if isinstance(text, str) else map(text.count, (b"[", b"{", b","))
    if sum(marks) > MAX_CONTAINERS:  # never in base64: lists, objects and members
        raise InvalidObservation(f"the body has more than {MAX_CONTAINERS} lists, objects and members; send arrays")
    try:
        return json.loads(text, object_hook=_array_or_dict, parse_constant=_no_constant)
    except InvalidObservation:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidObservation(f"the body is not valid JSON: {error}") from error


def _observation(payload: dict[str, Any], info: PolicyInfo, session: str) -> Observation:
    for name in ("image", "instruction"):
        if name not in payload:
            received = _names(payload) or "nothing"
            raise InvalidObservation(f"the body has no {name!r} (it has {received}); expected image and instruction")
    if len(payload) > MAX_FIELDS:
        raise InvalidObservation(f"the body has {len(payload)} fields; expected at most {MAX_FIELDS}")
    for name in payload:  # other unknown fields are ignored, as upstream does
        if len(name) < 20 and name != "unnorm_key" and difflib.get_close_matches(name, ["unnorm_key"], cutoff=0.7):
            raise InvalidObservation(f"unknown field {name!r}; did you mean 'unnorm_key'?")
    state = payload.get("state")
    if state is not None:
        if not isinstance(state, np.ndarray) or state.dtype.kind not in "fiu":
            raise InvalidObservation(f"state is a {type(state).__name__}; expected an array of numbers [n]")
        state = state.astype(np.float32)
    camera = info.cameras[0] if info.cameras else "agentview"
    return Observation(
        images={camera: _image(payload["image"])},
        state=state,
        instruction=payload["instruction"],
        session=session,
        step=0,
        unnorm_key=payload.get("unnorm_key"),
    )


def _image(value: Any) -> np.ndarray:
    """Return the image as uint8 [H, W, 3], as upstream's service converts it: grey three times, RGBA without alpha.

    Raises InvalidObservation naming the client's own field.
    """
    if isinstance(value, str):
        raise InvalidObservation(
            "image is a text; expected an array in json_numpy's form: decode the JPEG or PNG, and call "
            "json_numpy.patch() (pip install json-numpy) before sending the array"
        )
    if isinstance(value, list):
        try:
            array = np.array(value)
        except ValueError:  # rows of several lengths
            array = np.array(None)
        is_image = array.dtype.kind in "iu" and array.size and 0 <= array.min() <= array.max() <= 255
        value = array.astype(np.uint8) if is_image else value
    if not isinstance(value, np.ndarray):
        raise InvalidObservation(f"image is a {type(value).__name__}; expected uint8 [H, W, 3]")
    image = value[0] if value.ndim == 4 and len(value) == 1 else value
    if image.dtype == np.uint8 and image.ndim == 2:
        return np.repeat(image[:, :, None], 3, axis=2)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] not in (3, 4):
        got = f"image is {value.dtype} {list(value.shape)}"
        raise InvalidObservation(f"{got}; expected uint8 [H, W, 3] with values from 0 to 255")
    return np.ascontiguousarray(image[:, :, :3])


def _names(items: dict[str, Any]) -> str:
    return ", ".join(repr(name[:40]) for name in sorted(items)[:MAX_FIELDS])


def _array_or_dict(items: dict[str, Any]) -> Any:
    if _ND not in items:
        return items
    text, name = items[_ND], items.get("dtype")
    if not {"dtype", "shape"} <= items.keys() or not isinstance(text, str):
        raise InvalidObservation(f"an array has the members {_names(items)}; expected {_ND}, dtype and shape")
    if not isinstance(name, str) or name not in DTYPES:
        raise InvalidObservation(f"an array has dtype {str(name)[:40]!r}; expected one of {', '.join(DTYPES)}")
    # Strict like b64decode(validate=True), which takes three times as long in Python 3.10.
    try:
        raw = binascii.a2b_base64(text)  # skips other characters …
    except (binascii.Error, ValueError) as error:
        raise InvalidObservation(f"an array's data is not base64: {error}") from error
    if len(text) != 4 * -(-len(raw) // 3):  # … and then the text is longer than necessary
        raise InvalidObservation("an array's data is not base64: it has other characters")
    return view(raw, DTYPES[name], items["shape"])


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidObservation(f"the body is a {type(value).__name__}; expected {{'image': …, 'instruction': …}}")
    return value


def _no_constant(name: str) -> None:
    raise InvalidObservation(f"the body has {name}, which is not a JSON number")
