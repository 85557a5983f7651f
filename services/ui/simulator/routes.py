"""The simulator's page and its API. Only these routes are forwarded to the service, with the token."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from services.ui.site.requests import PageError, read
from services.ui.site.site import Site
from vla_contract.protocol.json_body import load_json

SLOW_S = 60.0  # saving a demonstration waits for others
API = "/simulator/api"


def routes(site: Site) -> list[BaseRoute]:
    """Return the page's routes. A session's random id is known only to its browser tab."""
    service = site.services["simulator"]

    def path_of(request: Request) -> str:
        """Return the service's path for a request."""
        if "id" not in request.path_params:
            return "/v1/sessions"
        return f"/v1/sessions/{quote(request.path_params['id'], safe='')}/{request.url.path.rpartition('/')[2]}"

    async def page(request: Request) -> Response:
        return site.render(request, "simulator/simulator.html.j2", about=await service.json("/v1/simulator"))

    async def policies(request: Request) -> Response:
        return JSONResponse(await service.json("/v1/policies"))

    async def stream(request: Request) -> Response:
        return await service.proxy(request, f"{path_of(request)}?{request.url.query}")

    async def post(request: Request) -> Response:
        try:
            body: Any = load_json(await read(request) or b"{}")
        except ValueError as error:
            raise PageError(400, str(error)) from error
        return JSONResponse(await service.json(path_of(request), "POST", json=body, timeout=SLOW_S))

    return [
        Route("/simulator", page),
        Route(f"{API}/policies", policies),
        Route(f"{API}/sessions", post, methods=["POST"]),
        *(Route(f"{API}/sessions/{{id}}/{command}", stream) for command in ("frame", "film")),
        *(Route(f"{API}/sessions/{{id}}/{command}", post, methods=["POST"]) for command in ("do", "keep")),
    ]
