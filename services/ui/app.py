"""The application: all pages' routes, the guard, and health probes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from services.ui.ask import routes as ask
from services.ui.ask.link import Choice, PolicyLink
from services.ui.data import routes as data
from services.ui.overview import routes as overview
from services.ui.runs import routes as runs
from services.ui.services import routes as services_page
from services.ui.simulator import routes as simulator
from services.ui.site.login import Guard
from services.ui.site.requests import PageError
from services.ui.site.site import Site
from services.ui.volume.datasets import Datasets
from services.ui.volume.runs import Stores
from vla_common.volume import Volume
from vla_contract.server.public import PublicPath
from vla_datasets.errors import DatasetError
from vla_evaluation.store.records import StoreError

PAGES = ("runs", "simulator", "ask", "data", "services")  # directories, in the order of the navigation
SERVICES = {"simulator": "http://127.0.0.1:8006"}  # default addresses
REDIRECTS = {"/ask": "/ask/", "/lab": "/services", "/favicon.ico": "/static/site/icon.svg"}


def create_app(
    link: PolicyLink,
    password: str | None = None,
    services: Mapping[str, str] | None = None,
    other_policies: Mapping[str, PolicyLink] | None = None,
    control_directory: str = "",
    volume: Path | None = None,
    stores: Stores | None = None,
) -> FastAPI:
    """Return the application. `/livez` and `/readyz` are public, the pages require the password, if any.

    services: addresses of the lab's services by name. other_policies: besides `link`. control_directory: of the control
    daemon, for the page Services. volume: with runs and data sets, by default $VLALAB_VOLUME. stores: its runs, if
    already read. `/readyz` answers 200 once the pages are served, and reports the policy's status: the pages are ready
    without a policy, too.
    """
    root = volume or Volume().root
    site = Site(PAGES, {**SERVICES, **(services or {})}, password, control_directory)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        threading.Thread(target=sets.rows, daemon=True).start()  # Home's first visitor need not wait for it
        yield
        for service in site.services.values():
            await service.close()

    app = FastAPI(title="vla-lab", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    for kind in (PageError, StoreError, DatasetError, HTTPException):
        app.add_exception_handler(kind, site.answer_problem)

    @app.get("/livez")
    async def livez() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/readyz")
    async def readyz() -> dict[str, str]:
        status = await asyncio.to_thread(link.status)
        trouble = status.trouble
        policy_status = f"{status.info.name} responds" if status.info else f"{trouble.title}: {trouble.detail}"
        return {"status": "ready", "policy": policy_status}

    for path, target in REDIRECTS.items():
        app.add_route(path, lambda request, target=target: RedirectResponse(target, 307))
    pages = (simulator.routes(site), services_page.routes(site), ask.routes(site, Choice(link, other_policies), root))
    stores, sets = stores or Stores(root), Datasets(root)
    readers = (overview.routes(site, stores, sets), runs.routes(site, stores), data.routes(site, sets))
    for routes in (site.routes(), *pages, *readers):
        app.router.routes.extend(routes)
    app.add_middleware(Guard, login=site.login, login_response=site.login_response)
    app.add_middleware(PublicPath, service="ui")
    return app
