"""The page about the lab: who may see it looks; who has the token starts, stops and reads logs, by the steward."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from services.ui.lab import machine
from services.ui.lab.services import rows, standings
from services.ui.site import words
from services.ui.site.site import Site
from services.ui.site.steward import Alone, Refused
from vla_contract.server.public import page_url

GIGABYTE = 1e9
PAGE = "ui"  # it does not start or stop itself
FIRST_S = 0.7  # what the first look waits for the steward; the page looks again at once
WORST_FIRST = ("fail", "warn", "pass", "skip")


def routes(site: Site) -> list[BaseRoute]:
    """Returns the page's routes: all of it, the parts that are drawn anew, and what the steward does."""

    async def drawn(request: Request, template: str, patience_s: float | None = None, acts: bool = True) -> Response:
        shares = {"memory": machine.memory(), "disk": machine.disk(), "load": machine.load()}
        found, (told, alone) = await asyncio.gather(standings(site.services), _told(site, patience_s))
        found = rows(found, told)
        # as the browser reaches this machine: a service's own address may be a container's name
        host = request.url.hostname or "127.0.0.1"
        acts = acts and not alone and site.login.is_logged_in(request)
        return site.render(
            request, template, services=found, shares=shares, host=host, gigabyte=GIGABYTE, alone=alone, acts=acts,
            now=time.time(), token=site.login.required, page_service=PAGE, known=told["status"], error=told["error"],
            actions=told["actions"], page_url=page_url,
        )  # fmt: skip

    async def lab(request: Request) -> Response:
        # The script that hears buttons comes after the page, and brings them: until then there is what to type.
        return await drawn(request, "lab/lab.html.j2", FIRST_S, acts=False)

    async def state(request: Request) -> Response:
        return await drawn(request, "lab/state.html.j2")

    async def doctor(request: Request) -> Response:
        try:
            found = await site.steward.ask("/doctor")
        except (Alone, Refused):  # said by the page's other part
            return Response()
        checks = sorted((found["told"] or {}).get("checks", ()), key=lambda one: WORST_FIRST.index(one["verdict"]))
        acts = site.login.is_logged_in(request)
        return site.render(request, "lab/doctor.html.j2", checks=checks, acts=acts, **found)

    async def examine(request: Request) -> Response:
        return await asked(request, "/doctor", "POST")

    async def act(request: Request) -> Response:
        return await asked(request, f"/services/{_part(request, 'name')}/{_part(request, 'what')}", "POST")

    async def log(request: Request) -> Response:
        return await asked(request, f"/services/{_part(request, 'name')}/log")

    async def asked(request: Request, path: str, method: str = "GET") -> Response:
        if not site.login.is_logged_in(request):
            return JSONResponse({"detail": words.say(words.language_of(request), "lab.needs_token")}, 403)
        return await _answer(site.steward.ask(path, method), words.language_of(request))

    return [
        Route("/lab", lab),
        Route("/lab/state", state),
        Route("/lab/doctor", doctor),
        Route("/lab/doctor", examine, methods=["POST"]),
        Route("/lab/services/{name}/log", log),
        Route("/lab/services/{name}/{what}", act, methods=["POST"]),
    ]


def _part(request: Request, name: str) -> str:
    return quote(request.path_params[name], safe="")


async def _told(site: Site, patience_s: float | None) -> tuple[dict[str, Any], str]:
    """Returns what the steward tells, and why it tells nothing: "" where it does, "asked" where it takes longer."""
    nothing = {"status": None, "error": "", "actions": []}
    try:
        return {**nothing, **await asyncio.wait_for(site.steward.ask("/status"), patience_s)}, ""
    except asyncio.TimeoutError:
        return nothing, "asked"
    except Alone as error:
        return nothing, error.why
    except Refused as error:
        return {**nothing, "error": error.why}, ""


async def _answer(asked: Awaitable[Any], language: str) -> Response:
    """Returns the steward's JSON, or in words why there is none."""
    try:
        return JSONResponse(await asked)
    except Refused as error:
        return JSONResponse({"detail": error.why}, error.status)
    except Alone as error:
        return JSONResponse({"detail": words.say(language, f"lab.alone_{error.why}").replace("`", "")}, 502)
