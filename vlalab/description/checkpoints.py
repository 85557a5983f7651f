"""Which checkpoint a model's service gets where nobody named one: the one that lies on the volume."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from vlalab.description import compose, manifests, service_settings
from vlalab.host import paths
from vlalab.host.console import say

RequestedSettings = Mapping[str, Mapping[str, str]]  # service → its settings, by variable
Settings = dict[str, dict[str, str]]


def available(service: str) -> list[str]:
    """Return the names of the checkpoints on the volume that this service can serve, sorted."""
    names = []
    for path in (paths.volume() / "checkpoints").glob("*/config.json"):
        # One that cannot be read is half written, another user's, or not a checkpoint's.
        with suppress(OSError, ValueError, AttributeError):
            is_of_model = json.loads(path.read_text()).get("model_type") == manifests.models()[service].type
            if is_of_model and any(path.parent.glob("*.safetensors")):
                names.append(path.parent.name)
    return sorted(names)


def complete(
    order: Sequence[str], named: Sequence[str], requested: RequestedSettings, running: Collection[str] = ()
) -> Settings:
    """Return the settings of the services to start, in their order, each model with a checkpoint where there is one.

    One that nobody chose is the only one on the volume, and said. Where there is none, or more than one, a service that
    another merely needs is left out, with how to get it; `preflight` refuses what was asked for by name. Those that run
    have what they need.
    """
    completed: Settings = {}
    for name in order:
        variable = service_settings.variable(name, "CHECKPOINT")
        checkpoint = {**compose.environment_variables(), **requested[name]}.get(variable)
        candidates = available(name) if name in manifests.models() and name not in running and not checkpoint else None
        if candidates is None or (name in named and len(candidates) != 1):
            completed[name] = dict(requested[name])
        elif len(candidates) == 1:
            say(f"{name} serves checkpoint {candidates[0]}, the only one on the volume that it can")
            completed[name] = {**requested[name], variable: candidates[0]}
        else:
            suite = manifests.models()[name].example_suite
            command = f"./lab checkpoint {name} --tiny (or --suite {suite}), then ./lab up {name}"
            if candidates:
                command = (
                    f"./lab up {name} --checkpoint {candidates[0]} (also on the volume: {', '.join(candidates[1:])})"
                )
            say(f"{', '.join(named)} comes up without {name}, and finds it once it is up: {command}")
    return completed
