"""The page about the lab: it only looks. Starting and stopping are the host tool's, whose commands it shows."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from services.ui.lab import machine
from services.ui.lab.services import standings
from services.ui.site.site import Site

GIGABYTE = 1e9


def routes(site: Site) -> list[BaseRoute]:
    """Returns the page's routes: all of it, and the part that is drawn anew every few seconds."""

    async def drawn(request: Request, template: str) -> Response:
        shares = {"memory": machine.memory(), "disk": machine.disk(), "load": machine.load()}
        found = await standings(site.services)
        # as the browser reaches this machine: a service's own address may be a container's name
        host = request.url.hostname or "127.0.0.1"
        return site.render(request, template, services=found, shares=shares, host=host, gigabyte=GIGABYTE)

    async def lab(request: Request) -> Response:
        return await drawn(request, "lab/lab.html.j2")

    async def state(request: Request) -> Response:
        return await drawn(request, "lab/state.html.j2")

    return [Route("/lab", lab), Route("/lab/state", state)]
