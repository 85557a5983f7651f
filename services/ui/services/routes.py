"""The page Services: state, machine, use by token. Logged-in users control services and read logs by the daemon."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from services.ui.services import control_daemon
from services.ui.services.control_daemon import DaemonUnavailable
from services.ui.services.tokens import token_use
from services.ui.site import texts
from services.ui.site.requests import PageError, ServiceUnavailable
from services.ui.site.site import Site
from services.ui.site.upstream import Upstream
from vla_common.volume import Volume
from vla_contract.server.public import page_url

PAGE = "ui"  # cannot start or stop itself
FIRST_STATUS_S = 0.15  # limit for a page's first status, which it then refreshes
STATUS_TIMEOUT_S = 2.0
WORST_FIRST = ("fail", "warn", "pass", "skip")
NOTEBOOKS = ("ws_mdl", "libero_notebook", "openvla_notebook", "gr00t_notebook", "lerobot_notebook", "hf")
BROWSER_SERVICES = (*NOTEBOOKS, "tensorboard")  # opened in a browser
GROUPS = ("policies", "benchmarks", "course", "pages")  # in the order of the page
COLUMNS = ("service", "state", "do", "address", "since", "memory_short", "gpu", "from", "says")
BY_DAEMON = ("since", "memory_short", "gpu", "from")  # columns of what only the control daemon knows
DETAILS = ("policy", "checkpoint", "revision", "device", "quantization", "lock")


T = TypeVar("T")


@dataclass
class ServiceRow:
    """A service in state "ready", "starting" (responds, not ready), "away" (no response), "down", "ended"
    or "asked" (no answer yet).

    instance: its entry in `./lab status --json`. action: its last action from the page. obstacle: why the page cannot
    start it, with the command that helps.
    """

    name: str
    state: str = ""
    url: str = ""
    message: str = ""
    details: Mapping[str, str] = field(default_factory=dict)
    instance: Mapping[str, Any] = field(default_factory=dict)
    action: Mapping[str, Any] = field(default_factory=dict)
    obstacle: str = ""

    @property
    def port(self) -> int | None:
        """The port in its URL."""
        return urlsplit(self.url).port

    @property
    def group(self) -> str:
        """One of GROUPS."""
        by_role = {"policy": "policies", "job": "benchmarks"}
        role = self.instance.get("role") or ("policy" if "policy" in self.details else "")
        return by_role.get(role) or ("course" if self.name in NOTEBOOKS else "pages")

    @property
    def is_current(self) -> bool | None:
        """Whether its image or environment matches the lock; None if it is not built."""
        image = self.instance.get("image_fits")
        return self.instance.get("environment_fits") if image is None else image


def routes(site: Site) -> list[BaseRoute]:
    """Return the routes of the page, its refreshed parts, and the daemon's actions."""

    async def draw(request: Request, template: str, wait_s: float | None = None, acts: bool = True) -> Response:
        services, status, unavailable = await survey(site, wait_s)
        # the browser's name of this machine: a service's own address may be a container's name
        host = request.url.hostname or "127.0.0.1"
        acts = acts and not unavailable and site.login.is_logged_in(request)
        columns = [name for name in COLUMNS if status["status"] or name not in BY_DAEMON]
        return site.render(
            request, template, services=services, groups=GROUPS, shares=machine(), host=host, acts=acts,
            unavailable=unavailable, columns=columns, now=time.time(), token=site.login.required, page_service=PAGE,
            lab_status=status["status"], error=status["error"], actions=status["actions"], page_url=page_url,
            opened=BROWSER_SERVICES,
        )  # fmt: skip

    async def doctor(request: Request) -> Response:
        try:
            report = await control_daemon.ask(site.control_directory, "/doctor")
        except (DaemonUnavailable, PageError):  # shown by the page's other part
            return Response()
        checks = sorted((report["told"] or {}).get("checks", ()), key=lambda check: WORST_FIRST.index(check["verdict"]))
        acts = site.login.is_logged_in(request)
        return site.render(request, "services/doctor.html.j2", checks=checks, acts=acts, **report)

    async def tokens(request: Request) -> Response:
        if not site.login.is_logged_in(request):
            raise PageError(403, texts.text(texts.language_of(request), "services.needs_token"))
        uses = await asyncio.gather(*map(token_use, site.services.values()))
        policies = {name: use for name, use in zip(site.services, uses, strict=True) if use}
        return site.render(request, "services/tokens.html.j2", policies=policies)

    async def forward(request: Request) -> Response:
        names = request.path_params.values()
        return await control_daemon.forward(site, request, *(("services", *names) if names else ("doctor",)))

    # Buttons appear when the script has loaded; until then the page shows commands.
    page = partial(draw, template="services/services.html.j2", wait_s=FIRST_STATUS_S, acts=False)
    return [
        Route("/services", page),
        Route("/services/state", partial(draw, template="services/state.html.j2")),
        Route("/services/tokens", tokens),
        Route("/services/doctor", doctor),
        Route("/services/doctor", forward, methods=["POST"]),
        Route("/services/{name}/{what}", forward, methods=["GET", "POST"]),
    ]


async def survey(site: Site, wait_s: float | None = None) -> tuple[list[ServiceRow], dict[str, Any], str]:
    """Return all services, the control daemon's status, and why that is missing: "" if it is not.

    wait_s: after this long, services that have not answered, and the status, are "asked".
    """
    names = list(site.services)
    queries = asyncio.gather(*(_within(wait_s, query_service(site.services[name])) for name in names))
    rows, (status, unavailable) = await asyncio.gather(queries, _daemon_status(site.control_directory, wait_s))
    answers = [row or ServiceRow(name, "asked", site.services[name].url) for name, row in zip(names, rows, strict=True)]
    return merge({row.name: row for row in answers}, status), status, unavailable


async def _within(wait_s: float | None, query: Awaitable[T]) -> T | None:
    try:
        return await asyncio.wait_for(query, wait_s)
    except asyncio.TimeoutError:
        return None


async def _daemon_status(directory: str, wait_s: float | None) -> tuple[dict[str, Any], str]:
    empty = {"status": None, "error": "", "actions": [], "obstacles": {}}
    try:
        status = await _within(wait_s, control_daemon.ask(directory, "/status"))
    except DaemonUnavailable as error:
        return empty, error.reason
    except PageError as error:
        return {**empty, "error": error.reason}, ""
    return ({**empty, **status}, "") if status else (empty, "asked")


async def query_service(service: Upstream) -> ServiceRow:
    """Return a service's state from its own endpoints."""
    status, text = await service.status("/api" if service.name in NOTEBOOKS else "/readyz", STATUS_TIMEOUT_S)
    if status != 200:
        return ServiceRow(service.name, "starting" if status else "away", service.url, text)
    try:
        info: Any = await service.json("/v1/info", timeout=STATUS_TIMEOUT_S)
        description = {"policy": info.get("name"), **(info.get("checkpoint") or {}), **info}
        description |= {"checkpoint": description.get("repo"), "lock": str(description.get("lock_hash") or "")[:12]}
    except (ServiceUnavailable, AttributeError):  # not a policy
        description = {}
    details = {name: str(description[name])[:80] for name in DETAILS if description.get(name) not in (None, "", "none")}
    return ServiceRow(service.name, "ready", service.url, details=details)


def merge(rows: Mapping[str, ServiceRow], daemon: Mapping[str, Any]) -> list[ServiceRow]:
    """Return all services with the control daemon's data; without a daemon, the queried services."""
    actions = {action["service"]: action for action in daemon["actions"]}
    services = (daemon["status"] or {}).get("services", [])
    listed = {service["service"]: service for service in services if not service["private"]}
    merged = []
    for name in dict.fromkeys(service["service"] for service in services):
        instance, row = listed.get(name, {}), rows.get(name, ServiceRow(name))
        state = instance.get("state") or "down"
        if state in ("up", "starting"):
            state = "ready" if instance["health"] == "healthy" else "starting"
        row.state, row.url = state.split(" ")[0], instance.get("url") or row.url
        row.instance, row.action, row.obstacle = instance, actions.get(name, {}), daemon["obstacles"].get(name, "")
        merged.append(row)
    return merged or list(rows.values())


def machine() -> dict[str, tuple[float, float]]:
    """Return usage and total: memory and the volume's disk in bytes, load in cores."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    memory = {line[0]: int(line[1]) * 1024 for line in lines}
    shares = {"memory": (memory["MemTotal:"] - memory["MemAvailable:"], memory["MemTotal:"])}
    with suppress(OSError):  # no volume
        disk = shutil.disk_usage(Volume().root)
        shares["disk"] = (disk.total - disk.free, disk.total)
    return {**shares, "load": (os.getloadavg()[0], len(os.sched_getaffinity(0)))}
