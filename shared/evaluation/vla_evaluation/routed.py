"""Routes of evaluation's own services: JSON in and out; invalid requests are 400."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from vla_contract.protocol.errors import shorten
from vla_contract.protocol.json_body import load_json
from vla_contract.protocol.problems import Problem
from vla_contract.server.middleware import read_body

JSON = "application/json"


async def bad_request(request: Request, error: Exception) -> Response:
    """Raise Problem (400) for the ValueError of a handler: an exception handler of Starlette's."""
    raise Problem("bad-request", str(error)) from error


def json_response(value: Mapping[str, Any], status: int = 200) -> Response:
    """Return a mapping as a JSON answer."""
    return Response(json.dumps(value, ensure_ascii=False), status, media_type=JSON)


async def read(request: Request) -> dict[str, Any]:
    """Return the JSON object that was sent. Raises ValueError for anything else, Problem (415) for another type."""
    value = load_json(await read_body(request, (JSON,)))
    if not isinstance(value, dict):
        raise ValueError(f"the body is {shorten(value)}; expected a JSON object")
    return value
