"""The state of the lab's services, from their own endpoints and the control daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from services.ui.site.problem import ServiceUnavailable
from services.ui.site.upstream import Upstream

STATUS_TIMEOUT_S = 2.0
NOTEBOOKS = ("ws_mdl", "libero_notebook", "openvla_notebook", "gr00t_notebook", "lerobot_notebook", "hf")
BROWSER_SERVICES = (*NOTEBOOKS, "tensorboard")  # opened in a browser


@dataclass
class ServiceRow:
    """A service in state "ready", "starting" (responds, not ready), "away" (no response), "down" or "ended".

    instance: its entry in `./lab status --json`. action: its last action from the page.
    """

    name: str
    state: str
    url: str
    message: str = ""
    details: Mapping[str, str] = field(default_factory=dict)
    instance: Mapping[str, Any] = field(default_factory=dict)
    action: Mapping[str, Any] = field(default_factory=dict)

    @property
    def port(self) -> int | None:
        """The port in its URL."""
        return urlsplit(self.url).port

    @property
    def is_current(self) -> bool | None:
        """Whether its image or environment matches the lock; None if it is not built."""
        image = self.instance.get("image_fits")
        return self.instance.get("environment_fits") if image is None else image


async def ask_all(services: Mapping[str, Upstream]) -> dict[str, ServiceRow]:
    """Query all services. Return their rows by name."""
    rows = await asyncio.gather(*(_ask(service) for service in services.values()))
    return {row.name: row for row in rows}


def merge(rows: Mapping[str, ServiceRow], daemon: Mapping[str, Any]) -> list[ServiceRow]:
    """Return all services with the control daemon's data; without a daemon, the queried services."""
    actions = {action["service"]: action for action in daemon["actions"]}
    services = (daemon["status"] or {}).get("services", [])
    listed = {service["service"]: service for service in services if not service["private"]}
    merged = []
    for name in dict.fromkeys(service["service"] for service in services):
        instance, row = listed.get(name, {}), rows.get(name, ServiceRow(name, "", ""))
        state = instance.get("state") or "down"
        if state in ("up", "starting"):
            state = "ready" if instance["health"] == "healthy" else "starting"
        row.state, row.url = state.split(" ")[0], instance.get("url") or row.url
        row.instance, row.action = instance, actions.get(name, {})
        merged.append(row)
    return merged or list(rows.values())


async def _ask(service: Upstream) -> ServiceRow:
    status, text = await service.status("/api" if service.name in NOTEBOOKS else "/readyz", STATUS_TIMEOUT_S)
    if status != 200:
        return ServiceRow(service.name, "starting" if status else "away", service.url, text)
    try:
        info: Any = await service.json("/v1/info", timeout=STATUS_TIMEOUT_S)
        description = {"policy": info.get("name"), **(info.get("checkpoint") or {}), **info}
        description |= {"checkpoint": description.get("repo"), "lock": str(description.get("lock_hash") or "")[:12]}
    except (ServiceUnavailable, AttributeError):  # not a policy
        description = {}
    names = ("policy", "checkpoint", "revision", "device", "quantization", "lock")
    details = {name: str(description[name])[:80] for name in names if description.get(name) not in (None, "", "none")}
    return ServiceRow(service.name, "ready", service.url, details=details)
