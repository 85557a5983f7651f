"""The lab's services: how each answers where the site was told that it would be, and what the control daemon knows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from services.ui.site.problem import Away
from services.ui.site.upstream import Upstream

ASK_S = 2.0
NOTEBOOKS = ("ws_mdl", "libero_notebook", "openvla_notebook", "gr00t_notebook", "hf")
OPENED = (*NOTEBOOKS, "tensorboard")  # by a browser


@dataclass
class Row:
    """One service: "ready", "starting" (it answers, and is not ready), "away", "down" or "ended"; what it says.

    known: what `./lab status --json` says of it. action: what was done to it from the page last.
    """

    name: str
    state: str
    url: str
    said: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    known: Mapping[str, Any] = field(default_factory=dict)
    action: Mapping[str, Any] = field(default_factory=dict)

    @property
    def port(self) -> int | None:
        """Where it listens."""
        return urlsplit(self.url).port

    @property
    def fits(self) -> bool | None:
        """Whether what it is started from is of the lock; None where there is nothing yet."""
        image = self.known.get("image_fits")
        return self.known.get("environment_fits") if image is None else image


async def ask_all(services: Mapping[str, Upstream]) -> dict[str, Row]:
    """Return how each service answers, by name."""
    rows = await asyncio.gather(*(_ask(service) for service in services.values()))
    return {row.name: row for row in rows}


def merge(rows: Mapping[str, Row], told: Mapping[str, Any]) -> list[Row]:
    """Return every service with what the control daemon told of it; without that, those that were asked."""
    actions = {one["service"]: one for one in told["actions"]}
    services = (told["status"] or {}).get("services", [])
    lasting = {service["service"]: service for service in services if not service["private"]}
    merged = []
    for name in dict.fromkeys(service["service"] for service in services):
        known, row = lasting.get(name, {}), rows.get(name, Row(name, "", ""))
        state = known.get("state") or "down"
        if state in ("up", "starting"):
            state = "ready" if known["health"] == "healthy" else "starting"
        row.state, row.url = state.split(" ")[0], known.get("url") or row.url
        row.known, row.action = known, actions.get(name, {})
        merged.append(row)
    return merged or list(rows.values())


async def _ask(service: Upstream) -> Row:
    status, text = await service.status("/api" if service.name in NOTEBOOKS else "/readyz", ASK_S)
    if status != 200:
        return Row(service.name, "starting" if status else "away", service.url, text)
    try:
        info: Any = await service.json("/v1/info", timeout=ASK_S)
        told = {"policy": info.get("name"), **(info.get("checkpoint") or {}), **info}
        told |= {"checkpoint": told.get("repo"), "lock": str(told.get("lock_hash") or "")[:12]}
    except (Away, AttributeError):  # not a policy
        told = {}
    names = ("policy", "checkpoint", "revision", "device", "quantization", "lock")
    facts = {name: str(told[name])[:80] for name in names if told.get(name) not in (None, "", "none")}
    return Row(service.name, "ready", service.url, facts=facts)
