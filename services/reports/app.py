"""The application: runs, their reports with films that seek, and data sets, for people and as JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from services.reports import api, data, files
from services.reports.open_file import OpenFile
from services.reports.sets import Sets
from services.reports.stores import Stores
from vla_contract.server.auth import ASK_PERSON, TokenCheck, bearer
from vla_contract.server.public import PublicPath, page_path
from vla_evaluation.report.page import FOLDER, templates

PROBES = ("/livez", "/readyz")  # for health checks, which carry no token
HEADERS = [  # a report is a file that others may have written: it gets pictures and films from here, and nothing else
    (b"content-security-policy", b"default-src 'none'; img-src 'self' data:; media-src 'self' data:; "
     b"style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
     b"frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),  # a report may be built again: ask whether it has changed
]  # fmt: skip


def create_app(root: Path, check: TokenCheck, stores: Stores) -> Callable:
    """Returns the ASGI application over the volume at `root`, whose runs `stores` reads."""

    def overview(request: Request) -> Response:
        page = templates(Path(__file__).parent, FOLDER).get_template("overview.html.j2")
        return HTMLResponse(page.render(runs=files.listed(root), curves=files.curves(root), base=page_path("reports")))

    def run(request: Request) -> Response:
        name = files.resolve(root, request.path_params["run"])
        return RedirectResponse(f"/{quote(name)}/{files.REPORT}", 307)

    def report(request: Request) -> Response:
        return OpenFile(files.open_report(root, request.path_params["run"]), files.REPORT)

    def film(request: Request) -> Response:
        name = request.path_params["name"]
        return OpenFile(files.open_film(root, request.path_params["run"], name), name)

    def curve(request: Request) -> Response:
        return OpenFile(files.open_file(root, *files.curve(request.path_params["name"])), files.CURVE)

    routes = [
        *(Route(probe, lambda request: PlainTextResponse("ready\n")) for probe in PROBES),
        Route("/", overview),
        *api.routes(stores),
        *data.routes(Sets(root)),
        Route("/curves/{name}.png", curve),
        Route("/{run}", run),
        Route("/{run}/", run),
        Route(f"/{{run}}/{files.REPORT}", report),
        Route("/{run}/videos/{name}", film),
    ]
    app = Starlette(routes=routes, exception_handlers={files.Missing: missing, HTTPException: refused})
    return PublicPath(guard(app, check), "reports")


def missing(request: Request, error: Exception) -> Response:
    """Answers that something is not there, with where the list is."""
    return PlainTextResponse(f"{error}. All runs: /\n", 404)


def refused(request: Request, error: HTTPException) -> Response:
    """Answers what Starlette refuses in plain words."""
    words = "nothing is here; all runs: /" if error.status_code == 404 else error.detail
    return PlainTextResponse(f"{words}\n", error.status_code, headers=error.headers)


def guard(app: Callable, check: TokenCheck) -> Callable:
    """Returns the application behind the token, with HEADERS in every answer; PROBES answer everybody."""

    async def guarded(scope: dict, receive: Callable, send: Callable) -> None:
        async def send_with_headers(message: dict) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *HEADERS]}
            await send(message)

        inner: Callable[..., Awaitable[None]] = app
        if scope["type"] == "http" and scope["path"] not in PROBES and not check.allows(_token(scope)):
            inner = PlainTextResponse("The password is the lab's token (VLALAB_TOKEN).\n", 401, headers=ASK_PERSON)
        await inner(scope, receive, send_with_headers)

    return guarded


def _token(scope: dict) -> bytes:
    given = dict(scope["headers"]).get(b"authorization", b"")
    return bearer(given.decode("latin-1"))
