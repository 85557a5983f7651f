"""Check what services need before gigabytes are installed for them: a checkpoint, a run or an address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from vlalab.description import checkpoints, compose, manifests, runs, service_settings
from vlalab.host.console import LabError


def require_startable(names: Sequence[str], overrides: Mapping[str, service_settings.Settings]) -> None:
    """Raise LabError for an invalid $VLALAB_PUBLIC_URL, or for the first service that misses something."""
    compose.page_url("")
    for name in names:
        settings = {**compose.environment_variables(), **service_settings.stored(name), **overrides.get(name, {})}
        missing = [text for text in (_checkpoint(name, settings), _run(name, settings)) if text]
        for variable, example in manifests.services()[name].needs.items():
            if not settings.get(variable):
                missing.append(f"an address: set {variable}, for example {variable}={example} ./lab up {name}")
        if missing:
            raise LabError(f"{name} cannot start: missing " + "; and ".join(missing))


def _checkpoint(service: str, settings: Mapping[str, str | None]) -> str:
    """Return a message if a model's service has no checkpoint, else ""."""
    if service not in manifests.models():
        return ""
    variable = service_settings.variable(service, "CHECKPOINT")
    available = service_settings.checkpoints_on_volume()
    if name := settings.get(variable):
        if name in available or Path(name).expanduser().is_dir():
            return ""
        return f"checkpoint '{name}', set in {variable}; on the volume: {', '.join(available) or 'none'}"
    if len(checkpoints.available(service)) == 1:
        return ""  # used by default
    if available:
        return f"a checkpoint (select one with --checkpoint: {', '.join(available)})"
    flag = manifests.models()[service].download_flag
    return f"a checkpoint (get one: ./lab checkpoint {service} {flag}, or --tiny for tests)"


def _run(service: str, settings: Mapping[str, str | None]) -> str:
    """Return a message if a service replays a run and has none, else ""."""
    variable = manifests.services()[service].recording
    name = settings.get(variable) or ""
    if not variable or name.startswith("/"):  # a path of this machine, or of a container
        return ""
    if not name:
        return f"a run: set {variable} to latest or a name from ./lab runs"
    try:
        runs.run(variable, name)
    except LabError as error:
        return f"its run: {error}"
    return ""
