"""The routes that speak JSON, as an OpenAPI 3.1 document for programs and as a page for people.

The page is made from the document and loads nothing from elsewhere: a lab may have no way to the internet.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from vla_contract.protocol.plain import DTYPES
from vla_contract.protocol.problems import KINDS, MEDIA_TYPE, TYPE_PREFIX
from vla_contract.protocol.types import MAX_INSTRUCTION, MAX_SESSION

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
    "anyOf": [
        {
            "type": "object",
            "required": ["image", "instruction"],
            "properties": {
                "image": {**ARRAY, "description": "uint8 [H, W, 3], RGB; RGBA and grey, 0 to 255, are converted"},
                "instruction": {"type": "string", "minLength": 1, "maxLength": MAX_INSTRUCTION},
                "unnorm_key": {"type": ["string", "null"], "minLength": 1, "maxLength": MAX_SESSION},
                "state": {"anyOf": [{**ARRAY, "description": "numbers [n]"}, {"type": "null"}]},
            },
        },
        {
            "type": "object",
            "description": "The same once more encoded; the answer is then a text that holds JSON.",
            "required": ["encoded"],
            "properties": {"encoded": {"type": "string"}},
            "additionalProperties": False,
        },
    ]
}
_ACTION = {**ARRAY, "description": "float64 [n], the chunk's first action: the parts that /v1/info names"}
ACT_ANSWER = {"anyOf": [_ACTION, {"type": "string"}]}
PROBLEM = {
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
_INFO = {"type": "object", "required": ["name", "action", "cameras", "version"]}
_STATUS = {"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}}}
# what else any route may answer: to a head that is none, of another host, slow, too large, or one too many
OPEN = (400, 403, 408, 431, 503)
ASKED = (400, 401, 403, 408, 431, 503)
OF_A_BODY = (400, 401, 403, 408, 413, 415, 422, 429, 431, 500, 503, 504)


def document(
    token: bool,
    act_request: Mapping[str, Any] = ACT_REQUEST,
    act_answer: Mapping[str, Any] = ACT_ANSWER,
    probes: Iterable[str] = (),
) -> dict:
    """Returns the OpenAPI document.

    token: whether the service asks for one. act_request, act_answer: JSON schemas of /act.
    probes: other names of /readyz.
    """
    act = _operation("the next action for one picture and one instruction", act_answer, OF_A_BODY)
    act["requestBody"] = {"required": True, "content": {"application/json": {"schema": dict(act_request)}}}
    paths = {
        "/act": {"post": act},
        "/v1/info": {"get": _operation("what the policy says about itself", _INFO, ASKED)},
        "/livez": {"get": _operation("the process is up", _STATUS, OPEN) | {"security": []}},
        **{
            route: {"get": _operation("loaded, and one inference done", _STATUS, OPEN) | {"security": []}}
            for route in ("/readyz", *probes)
        },
        "/openapi.json": {"get": _operation("this document", {"type": "object"}, ASKED)},
    }
    security = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}} if token else {}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "vla-lab policy",
            "version": "1",
            "description": "The routes that speak JSON. POST /v1/act and /v1/reset speak msgpack: use the client of "
            "shared/contract, whose README describes them.",
        },
        "security": [{"token": []}] if token else [],
        "paths": paths,
        "components": {"schemas": {"Problem": PROBLEM}, **security},
    }


def _operation(summary: str, answer: Mapping[str, Any], statuses: Iterable[int]) -> dict[str, Any]:
    good = {"description": summary, "content": {"application/json": {"schema": dict(answer)}}}
    return {"summary": summary, "responses": {"200": good, **{str(status): _problem(status) for status in statuses}}}


def _problem(status: int) -> dict[str, Any]:
    titles = [title for code, title in KINDS.values() if code == status]
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": "; ".join(titles), "content": {MEDIA_TYPE: {"schema": schema}}}
