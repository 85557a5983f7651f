"""Which services answer: each is asked where the site was told that it would be, all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from services.ui.site.upstream import Away, Upstream

ASK_S = 2.0
HEALTH = {"ws_mdl": "/api", "libero_notebook": "/api", "openvla_notebook": "/api", "gr00t_notebook": "/api"}
OPENED = ("ws_mdl", "libero_notebook", "openvla_notebook", "gr00t_notebook", "tensorboard", "reports")  # by a browser


@dataclass(frozen=True)
class Standing:
    """One service: "ready", "starting" (it answers, and is not ready) or "away", and what it says of itself."""

    name: str
    state: str
    url: str
    said: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def port(self) -> int | None:
        """Where it listens."""
        return urlsplit(self.url).port

    @property
    def is_page(self) -> bool:
        """Whether a person opens it in a browser."""
        return self.name in OPENED


async def standings(services: Mapping[str, Upstream]) -> list[Standing]:
    """Returns how each service stands, in the order in which they were named."""
    return list(await asyncio.gather(*(_standing(service) for service in services.values())))


async def _standing(service: Upstream) -> Standing:
    status, text = await service.status(HEALTH.get(service.name, "/readyz"), ASK_S)
    if status is None:
        return Standing(service.name, "away", service.url)
    if status != 200:
        return Standing(service.name, "starting", service.url, text)
    return Standing(service.name, "ready", service.url, facts=await _facts(service))


async def _facts(service: Upstream) -> dict[str, str]:
    """Returns what a policy tells of itself; nothing for a service that is none."""
    try:
        info: Any = await service.json("/v1/info", timeout=ASK_S)
        checkpoint = info.get("checkpoint") or {}
        told = {
            "policy": info.get("name"),
            "checkpoint": checkpoint.get("repo"),
            "revision": checkpoint.get("revision"),
        }
        told |= {"device": info.get("device"), "quantization": info.get("quantization"), "lock": info.get("lock_hash")}
    except (Away, AttributeError):
        return {}
    return {name: str(value)[:80] for name, value in told.items() if value and value != "none"}
