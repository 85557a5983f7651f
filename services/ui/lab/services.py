"""Which services answer: each is asked where the site was told that it would be, all at once; and what the steward,
where there is one, knows of them beside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from services.ui.site.problem import Away
from services.ui.site.upstream import Upstream

ASK_S = 2.0
NOTEBOOKS = ("ws_mdl", "libero_notebook", "openvla_notebook", "gr00t_notebook", "hf")
HEALTH = dict.fromkeys(NOTEBOOKS, "/api")
OPENED = (*NOTEBOOKS, "tensorboard")  # by a browser


@dataclass(frozen=True)
class Standing:
    """One service: "ready", "starting" (it answers, and is not ready) or "away", and what it says of itself.

    known: what `./lab status --json` says of it, where the steward was asked; its state is "down" or "ended" then too.
    action: what was done to it from the page last.
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
    def is_acted_on(self) -> bool:
        """Whether it is being started or stopped."""
        return bool(self.action) and self.action["ended"] is None

    @property
    def fits(self) -> bool | None:
        """Whether what it is started from is of the lock; None where there is nothing yet."""
        image = self.known.get("image_fits")
        return self.known.get("environment_fits") if image is None else image

    @property
    def is_page(self) -> bool:
        """Whether a person opens it in a browser."""
        return self.name in OPENED


async def standings(services: Mapping[str, Upstream]) -> list[Standing]:
    """Returns how each service stands, in the order in which they were named."""
    return list(await asyncio.gather(*(_standing(service) for service in services.values())))


def rows(found: Sequence[Standing], told: Mapping[str, Any]) -> list[Standing]:
    """Returns every service with what the steward told of it; without that, what was found by asking them."""
    answered = {one.name: one for one in found}
    actions = {one["service"]: one for one in told["actions"]}
    services = (told["status"] or {}).get("services", [])
    lasting = {one["service"]: one for one in services if not one["private"]}
    return [
        _known(answered.get(name), name, lasting.get(name, {}), actions.get(name, {}))
        for name in dict.fromkeys(one["service"] for one in services)
    ] or list(found)


def _known(answered: Standing | None, name: str, known: Mapping[str, Any], action: Mapping[str, Any]) -> Standing:
    state = known.get("state") or "down"
    if state in ("up", "starting"):
        state = "ready" if known["health"] == "healthy" else "starting"
    url = known.get("url") or (answered.url if answered else "")
    one = answered or Standing(name, state, url)
    return replace(one, state=state.split(" ")[0], url=url, known=known, action=action)


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
        told |= {
            "device": info.get("device"),
            "quantization": info.get("quantization"),
            "lock": str(info.get("lock_hash") or "")[:12],
        }
    except (Away, AttributeError):
        return {}
    return {name: str(value)[:80] for name, value in told.items() if value and value != "none"}
