"""What a service still lacks, told before gigabytes are installed for it: a checkpoint, a run or an address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from vlalab.description import checkpoints, compose, manifests, runs, service_settings
from vlalab.host import paths
from vlalab.host.console import LabError


def require_startable(names: Sequence[str], overrides: Mapping[str, service_settings.Settings]) -> None:
    """Raises LabError for a bad $VLALAB_PUBLIC_URL, or naming what the first of these services lacks."""
    compose.page_url("")
    for name in names:
        settings = {**compose.environment_variables(), **service_settings.stored(name), **overrides.get(name, {})}
        if missing := [
            text for text in (_checkpoint(name, settings), _run(name, settings), _variable(name, settings)) if text
        ]:
            raise LabError(f"{name} cannot start yet: it lacks " + "; and ".join(missing))


def _checkpoint(service: str, settings: Mapping[str, str | None]) -> str:
    """Returns what is missing where a service of a model has no checkpoint, "" where it has one."""
    if service not in manifests.models():
        return ""
    variable = service_settings.variable(service, "CHECKPOINT")
    available = service_settings.checkpoints_on_volume()
    name = settings.get(variable)
    if name and (name in available or Path(name).expanduser().is_dir()):
        return ""
    if name:
        return f"the checkpoint '{name}' that {variable} names; on the volume: {', '.join(available) or 'none'}"
    if len(checkpoints.available(service)) == 1:
        return ""  # that one is taken
    if available:
        return f"a checkpoint (name one by --checkpoint: {', '.join(available)})"
    suite = manifests.models()[service].example_suite
    return f"a checkpoint (get one: ./lab checkpoint {service} --suite {suite}, or --tiny to try things)"


def _run(service: str, settings: Mapping[str, str | None]) -> str:
    """Returns what is missing where a service plays back a run and has none, "" where it has one."""
    variable = manifests.services()[service].recording
    if not variable:
        return ""
    name = settings.get(variable) or ""
    if (paths.volume() / "runs" / name).is_dir() and name:
        return ""
    if name.startswith("/"):  # a path of this machine, or of a container
        return ""
    if not name:
        return f"a run: {variable}=NAME names one that ./lab runs lists, or latest"
    try:
        runs.run(variable, name)
    except LabError as error:
        return f"its run: {error}"
    return ""


def _variable(service: str, settings: Mapping[str, str | None]) -> str:
    """Returns which variable is not set where a service cannot start without it, "" where all are."""
    for name, example in manifests.services()[service].needs.items():
        if not settings.get(name):
            return f"the address that {name} is to hold ({name}={example} ./lab up {service})"
    return ""
