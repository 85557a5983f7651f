"""Which checkpoint a model's service gets where nobody named one: the one that lies on the volume."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from vlalab.description import compose, manifests, service_settings
from vlalab.host import paths
from vlalab.host.console import say

Wanted = Mapping[str, Mapping[str, str]]  # service → its settings, by variable
Settings = dict[str, dict[str, str]]


def there(service: str) -> list[str]:
    """Returns the names of the checkpoints on the volume that this service can serve, sorted."""
    folders = (paths.volume() / "checkpoints").glob("*/config.json")
    return sorted(path.parent.name for path in folders if _is_whole(path, manifests.models()[service].type))


def _is_whole(config: Path, model: str) -> bool:
    try:
        told = json.loads(config.read_text())
        return told.get("model_type") == model and any(config.parent.glob("*.safetensors"))
    except (OSError, ValueError, AttributeError):  # half written, another user's, or no checkpoint's
        return False


def complete(order: Sequence[str], named: Sequence[str], wanted: Wanted, running: Collection[str] = ()) -> Settings:
    """Returns the settings of the services to start, in their order, each model with a checkpoint where there is one.

    One that nobody chose is the only one on the volume, and said. Where there is none, or more than one, a service that
    another merely needs is left out, with how to get it; `preflight` refuses what was asked for by name. Those that run
    have what they need.
    """
    found: Settings = {}
    for name in order:
        known = there(name) if name not in running and _has_none(name, wanted[name]) else None
        if known is None or (name in named and len(known) != 1):
            found[name] = dict(wanted[name])
        elif len(known) == 1:
            say(f"{name} serves checkpoint {known[0]}, the only one on the volume that it can")
            found[name] = {**wanted[name], service_settings.variable(name, "CHECKPOINT"): known[0]}
        else:
            say(f"{', '.join(named)} comes up without {name}, and finds it once it is up: {_how_to_start(name, known)}")
    return found


def _has_none(service: str, wanted: Mapping[str, str]) -> bool:
    """Returns whether a service needs a checkpoint that nobody named."""
    name = service_settings.variable(service, "CHECKPOINT")
    return service in manifests.models() and not {**compose.environment_variables(), **wanted}.get(name)


def _how_to_start(service: str, known: Sequence[str]) -> str:
    if known:
        return f"./lab up {service} --checkpoint {known[0]} (also on the volume: {', '.join(known[1:])})"
    suite = manifests.models()[service].example_suite
    return f"./lab checkpoint {service} --tiny (or --suite {suite}), then ./lab up {service}"
