"""The page Lab: who may see it looks; who has the token starts, stops and reads logs, by the control daemon."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from services.ui.lab import steward
from services.ui.lab.services import OPENED, ask_all, merge
from services.ui.lab.steward import Alone
from services.ui.site import words
from services.ui.site.problem import Problem
from services.ui.site.site import Site
from vla_common.volume import Volume
from vla_contract.server.public import page_url

PAGE = "ui"  # it does not start or stop itself
FIRST_S = 0.7  # what the first look waits for the daemon; the page looks again at once
WORST_FIRST = ("fail", "warn", "pass", "skip")


def routes(site: Site) -> list[BaseRoute]:
    """Return the page's routes: all of it, the parts that are drawn again, and what the daemon does."""

    async def draw(request: Request, template: str, wait_s: float | None = None, acts: bool = True) -> Response:
        rows, (told, alone) = await asyncio.gather(ask_all(site.services), _told(site, wait_s))
        # as the browser reaches this machine: a service's own address may be a container's name
        host = request.url.hostname or "127.0.0.1"
        acts = acts and not alone and site.login.is_logged_in(request)
        return site.render(
            request, template, services=merge(rows, told), shares=machine(), host=host, gigabyte=1e9, alone=alone,
            acts=acts, now=time.time(), token=site.login.required, page_service=PAGE, known=told["status"],
            error=told["error"], actions=told["actions"], page_url=page_url, opened=OPENED,
        )  # fmt: skip

    async def lab(request: Request) -> Response:
        # The script that hears buttons comes after the page, and brings them: until then there is what to type.
        return await draw(request, "lab/lab.html.j2", FIRST_S, acts=False)

    async def state(request: Request) -> Response:
        return await draw(request, "lab/state.html.j2")

    async def doctor(request: Request) -> Response:
        try:
            found = await steward.ask(site.steward, "/doctor")
        except (Alone, Problem):  # said by the page's other part
            return Response()
        checks = sorted((found["told"] or {}).get("checks", ()), key=lambda one: WORST_FIRST.index(one["verdict"]))
        acts = site.login.is_logged_in(request)
        return site.render(request, "lab/doctor.html.j2", checks=checks, acts=acts, **found)

    async def ask(request: Request) -> Response:
        """Pass a request on to the daemon, for those who have logged in."""
        language = words.language_of(request)
        if not site.login.is_logged_in(request):
            raise Problem(403, words.say(language, "lab.needs_token"))
        parts = (quote(part, safe="") for part in request.path_params.values())
        path = "/".join(("/services", *parts)) if request.path_params else "/doctor"
        try:
            return JSONResponse(await steward.ask(site.steward, path, request.method))
        except Alone as error:
            raise Problem(502, words.say(language, f"lab.alone_{error.why}").replace("`", "")) from error

    return [
        Route("/lab", lab),
        Route("/lab/state", state),
        Route("/lab/doctor", doctor),
        Route("/lab/doctor", ask, methods=["POST"]),
        Route("/lab/services/{name}/{what}", ask, methods=["GET", "POST"]),
    ]


async def _told(site: Site, wait_s: float | None) -> tuple[dict[str, Any], str]:
    """Return what the daemon tells, and why it tells nothing: "" where it does, "asked" where it takes longer."""
    nothing = {"status": None, "error": "", "actions": []}
    try:
        return {**nothing, **await asyncio.wait_for(steward.ask(site.steward, "/status"), wait_s)}, ""
    except asyncio.TimeoutError:
        return nothing, "asked"
    except Alone as error:
        return nothing, error.why
    except Problem as error:
        return {**nothing, "error": error.why}, ""


def machine() -> dict[str, tuple[float, float]]:
    """Return how much is used of all there is: memory and the volume's disk in bytes, load in cores."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    memory = {line[0]: int(line[1]) * 1024 for line in lines}
    shares = {"memory": (memory["MemTotal:"] - memory["MemAvailable:"], memory["MemTotal:"])}
    with suppress(OSError):  # no volume to be seen
        disk = shutil.disk_usage(Volume().root)
        shares["disk"] = (disk.total - disk.free, disk.total)
    return {**shares, "load": (os.getloadavg()[0], len(os.sched_getaffinity(0)))}
