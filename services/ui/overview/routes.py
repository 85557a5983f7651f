"""Home: running evaluations, services, the last runs, data sets, models, and the doctor's warnings."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from services.ui.services import control_daemon
from services.ui.services.control_daemon import DaemonUnavailable
from services.ui.services.routes import FIRST_STATUS_S, survey
from services.ui.site.requests import PageError
from services.ui.site.site import Site
from services.ui.volume import files
from services.ui.volume.datasets import Datasets
from services.ui.volume.runs import Stores
from vla_contract.server.public import page_url

LAST_RUNS = 10
COURSE, CHECKPOINTS = "ws_mdl", "checkpoints"
TROUBLE = ("fail", "warn")  # verdicts of the doctor


def routes(site: Site, stores: Stores, sets: Datasets) -> list[BaseRoute]:
    """Return the routes of the page and of its refreshed part."""

    def contents() -> dict[str, Any]:
        """Return what is on the volume: runs, data sets, and the checkpoints with their sizes in bytes."""
        names = files.names(stores.root, CHECKPOINTS)
        models = {name: files.tree_size(stores.root, CHECKPOINTS, name) for name in names}
        return {"runs": stores.rows(), "sets": sets.rows(), "models": models}

    async def warnings() -> list[dict[str, str]]:
        """Return the checks that the doctor's last report, if there is one, warns of."""
        try:
            report = await control_daemon.ask(site.control_directory, "/doctor")
        except (DaemonUnavailable, PageError):
            return []
        checks = (report["told"] or {}).get("checks", ())
        return [check for check in checks if check["verdict"] in TROUBLE]

    async def draw(request: Request, template: str, wait_s: float | None = None) -> Response:
        surveyed, volume, troubles = await asyncio.gather(survey(site, wait_s), run_in_threadpool(contents), warnings())
        services, _, unavailable = surveyed
        course = next((service for service in services if service.name == COURSE and service.state == "ready"), None)
        host = request.url.hostname or "127.0.0.1"
        return site.render(
            request, template, **volume, services=[service for service in services if service.state == "ready"],
            running=[run for run in volume["runs"] if run["state"] == "running"], last=volume["runs"][:LAST_RUNS],
            warnings=troubles, is_asked=unavailable == "asked", acts=control_daemon.may_act(site, request),
            course=course and (page_url(COURSE) or f"http://{host}:{course.port}"),
        )  # fmt: skip

    return [
        Route("/", partial(draw, template="overview/overview.html.j2", wait_s=FIRST_STATUS_S)),
        Route("/home/state", partial(draw, template="overview/state.html.j2")),
    ]
