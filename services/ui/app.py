"""The site as an application: every page's routes, the guard before them, probes beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from services.ui.ask import routes as ask
from services.ui.ask.link import Choice, PolicyLink
from services.ui.data import routes as data
from services.ui.lab import routes as lab
from services.ui.runs import routes as runs
from services.ui.simulator import routes as simulator
from services.ui.site.guard import Guard
from services.ui.site.problem import Problem
from services.ui.site.site import Site
from services.ui.volume.sets import Sets
from services.ui.volume.stores import Stores
from vla_common.volume import Volume
from vla_contract.server.public import PublicPath
from vla_datasets.errors import DatasetError
from vla_evaluation.store.records import StoreError

PAGES = ("ask", "simulator", "runs", "data", "lab")  # folders here, in the order of the navigation
SERVICES = {"simulator": "http://127.0.0.1:8006"}  # asked by the pages, where nothing else is said
REDIRECTS = {"/ask": "/ask/", "/favicon.ico": "/static/site/icon.svg"}


def create_app(
    link: PolicyLink,
    password: str | None = None,
    services: Mapping[str, str] | None = None,
    others: Mapping[str, PolicyLink] | None = None,
    steward: str = "",
    volume: Path | None = None,
    stores: Stores | None = None,
) -> FastAPI:
    """Return the application: `/livez` and `/readyz` for all, the pages for those who know the password, if any.

    services: addresses of the lab's services by name, as far as pages ask them. others: policies that can be asked
    instead of `link`'s, and beside it. steward: the folder in which the machine answers the page Lab. volume: where
    runs and data sets lie, by default $VLALAB_VOLUME; stores: those runs, if they were read before. `/readyz` answers
    200 as soon as the pages are served, and says whether the policy answers: a page whose policy is away is in order,
    and says so.
    """
    root = volume or Volume().root
    site = Site(PAGES, {**SERVICES, **(services or {})}, password, steward)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await site.close()

    app = FastAPI(title="vla-lab", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    for kind in (Problem, StoreError, DatasetError):
        app.add_exception_handler(kind, site.answer_problem)
    _add_probes(app, link)
    for path, to in REDIRECTS.items():
        app.add_route(path, _leads(to))
    pages = (simulator.routes(site), lab.routes(site), ask.routes(site, Choice(link, others)))
    readers = (runs.routes(site, stores or Stores(root)), data.routes(site, Sets(root)))
    for routes in (site.routes(), *pages, *readers):
        app.router.routes.extend(routes)
    app.add_middleware(Guard, login=site.login, ask=site.ask_to_log_in)
    app.add_middleware(PublicPath, service="ui")
    return app


def _add_probes(app: FastAPI, link: PolicyLink) -> None:
    @app.get("/livez")
    async def livez() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/readyz")
    async def readyz() -> dict[str, str]:
        status = await asyncio.to_thread(link.status)
        said = f"{status.info.name} answers" if status.info else f"{status.trouble.title}: {status.trouble.detail}"
        return {"status": "ready", "policy": said}


def _leads(to: str):
    def lead(request: Request) -> Response:
        return RedirectResponse(to, 307)

    return lead
