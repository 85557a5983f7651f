"""Routes of the evaluation's own services: handlers get the path's and the query's parameters, and JSON both ways."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from vla_contract.protocol.errors import shorten
from vla_contract.protocol.json_body import load_json
from vla_contract.protocol.problems import Problem
from vla_contract.server.exchange import Answer, Endpoint, Request

JSON = "application/json"
Handler = Callable[[Mapping, Mapping, Request], Awaitable[Answer]]


class Routed:
    """An `Endpoint` whose handler also gets the parameters of path and query, and whose ValueErrors are status 400."""

    def __init__(self, handler: Handler, **settings: Any):
        self.handler, self.settings = handler, settings

    async def __call__(self, scope, receive, send) -> None:
        query = {name: values[-1] for name, values in parse_qs(scope["query_string"].decode("latin-1")).items()}
        handler = partial(self.answer, scope.get("path_params", {}), query)
        await Endpoint(handler=handler, **self.settings)(scope, receive, send)

    async def answer(self, path: Mapping, query: Mapping, request: Request) -> Answer:
        try:
            return await self.handler(path, query, request)
        except ValueError as error:
            raise Problem("bad-request", str(error)) from error


def told(value: Mapping[str, Any], status: int = 200) -> Answer:
    """Return a mapping as a JSON answer."""
    return Answer(json.dumps(value, ensure_ascii=False).encode(), JSON, status)


def read(request: Request) -> dict[str, Any]:
    """Return the JSON object of the body. ValueError for anything else."""
    value = load_json(request.body)
    if not isinstance(value, dict):
        raise ValueError(f"the body is {shorten(value)}; expected a JSON object")
    return value
