"""The overview: a card for every page."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from services.ui.site.site import Site


def routes(site: Site) -> list[BaseRoute]:
    """Returns the page's routes."""

    def overview(request: Request) -> Response:
        return site.render(request, "overview/overview.html.j2")

    return [Route("/", overview)]
