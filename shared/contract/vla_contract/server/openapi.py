"""The parts of a policy's OpenAPI document that FastAPI cannot derive: arrays, bodies, and the answers to errors."""

from collections.abc import Mapping
from typing import Any

from vla_contract.protocol import codec
from vla_contract.protocol.act_json import MEDIA_TYPE as JSON
from vla_contract.protocol.plain import DTYPES
from vla_contract.protocol.problems import KINDS, MEDIA_TYPE, TYPE_PREFIX
from vla_contract.protocol.types import MAX_INSTRUCTION

ARRAY = {
    "type": "object",
    "description": "An array as json_numpy writes it: its bytes in base64, little-endian, row by row.",
    "required": ["__numpy__", "dtype", "shape"],
    "properties": {
        "__numpy__": {"type": "string", "contentEncoding": "base64"},
        "dtype": {"enum": list(DTYPES)},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 8},
    },
}
ACT_REQUEST = {
    "type": "object",
    "description": "Or {'encoded': the same as text}; the answer is then a text that holds JSON.",
    "properties": {
        "image": {**ARRAY, "description": "uint8 [H, W, 3], RGB; RGBA and grey, 0 to 255, are converted"},
        "instruction": {"type": "string", "minLength": 1, "maxLength": MAX_INSTRUCTION},
        "unnorm_key": {"type": ["string", "null"]},
        "state": {"anyOf": [{**ARRAY, "description": "numbers [n]"}, {"type": "null"}]},
        "encoded": {"type": "string"},
    },
}
_ACTION = {**ARRAY, "description": "float64 [n], the chunk's first action: the parts that /v1/info names"}
ACT_ANSWER = {"anyOf": [_ACTION, {"type": "string"}]}
_PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"enum": [TYPE_PREFIX + kind for kind in KINDS]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "value, expectation and next step"},
        "request_id": {"type": "string"},
    },
}
PROBE_ERRORS = (403, 503)
ERRORS = (401, *PROBE_ERRORS)
BODY_ERRORS = (*ERRORS, 408, 409, 413, 415, 422, 429, 500, 504)
PACKED = {codec.MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}  # README.md has its fields


def json_content(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a JSON body with this schema."""
    return {JSON: {"schema": dict(schema)}}


def errors(statuses: tuple[int, ...]) -> dict[int | str, dict[str, Any]]:
    """Return the responses of a route that are problem+json."""
    problem = {MEDIA_TYPE: {"schema": _PROBLEM}}
    titles = {code: "; ".join(title for status, title in KINDS.values() if status == code) for code in statuses}
    return {code: {"description": title, "content": problem} for code, title in titles.items()}
