"""The default checkpoint of a model's service: the only one on the volume."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from vlalab.description import compose, manifests, service_settings
from vlalab.host import paths
from vlalab.host.console import log_info

RequestedSettings = Mapping[str, Mapping[str, str]]  # service → its settings, by variable
Settings = dict[str, dict[str, str]]


def available(service: str) -> list[str]:
    """Return the names of the checkpoints on the volume that this service can serve, sorted."""
    names = []
    for path in (paths.volume() / "checkpoints").glob("*/config.json"):
        # Unreadable ones are incomplete, another user's, or not checkpoints.
        with suppress(OSError, ValueError, AttributeError, TypeError):
            is_of_model = manifests.models()[service].owns(json.loads(path.read_text()))
            if is_of_model and any(path.parent.glob("*.safetensors")):
                names.append(path.parent.name)
    return sorted(names)


def complete(
    order: Sequence[str], named: Sequence[str], requested: RequestedSettings, running: Collection[str] = ()
) -> Settings:
    """Return the settings of the services to start, in their order, with a checkpoint for each model.

    The default, which is printed, is the only checkpoint on the volume. With none or several, a service that is only a
    dependency is omitted, with a message how to add it; `up` rejects one that the user named. Running services
    need nothing.
    """
    completed: Settings = {}
    for name in order:
        variable = service_settings.variable(name, "CHECKPOINT")
        checkpoint = {**compose.environment_variables(), **requested[name]}.get(variable)
        candidates = available(name) if name in manifests.models() and name not in running and not checkpoint else None
        if candidates is None or (name in named and len(candidates) != 1):
            completed[name] = dict(requested[name])
        elif len(candidates) == 1:
            log_info(f"{name} serves checkpoint {candidates[0]}, the only suitable one on the volume")
            completed[name] = {**requested[name], variable: candidates[0]}
        else:
            flag = manifests.models()[name].download_flag
            command = f"./lab checkpoint {name} --tiny (or {flag}), then ./lab up {name}"
            if candidates:
                command = (
                    f"./lab up {name} --checkpoint {candidates[0]} (also on the volume: {', '.join(candidates[1:])})"
                )
            log_info(f"{', '.join(named)} starts without {name}; to add it: {command}")
    return completed
