"""The settings of a service, as variables of compose.yaml: those from the flags of `up` (checkpoint, GPU, a port), and
those of a running service, compared with the requested ones.

The flags of `up` are stored in the caller's state directory while the service runs, so a restart, or a service started
later, uses the same values. The complete settings, which include a token, are never written to a file: they are read
from the environment of a local service's supervisor, or from a container's configuration.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from vlalab.description import compose, gpus, manifests, ports, runs, variants
from vlalab.host import paths, shared_code, state
from vlalab.host.console import LabError, unknown
from vlalab.host.shared_code import Option

_SINGLE_VARIABLE = re.compile(r"\$\{(\w+):?-(.*)\}")  # a value that consists of one variable with its default
_PORT = re.compile(r":\d+")
_VARIABLE = re.compile(r"\$\{[^{}]*\}")  # a variable inside a default

Settings = Mapping[str, "str | None"]  # variable → value; None: reset to the default


def variable(service: str, setting: str) -> str:
    """Return the name of a service's variable: ("ws_mdl", "GPU") → VLALAB_WS_MDL_GPU."""
    return f"VLALAB_{service.upper().replace('-', '_')}_{setting}"


# --- from flags ---------------------------------------------------------------------------------------------


def from_flags(
    service: str, suite: str | None = None, checkpoint: str | None = None, gpu: str | None = None,
    model_flags: Mapping[str, str] = MappingProxyType({}), variant: str | None = None,
) -> Settings:  # fmt: skip
    """Return the settings of one service for the flags of `up`. Raise LabError for a missing checkpoint.

    model_flags: setting → value.
    """
    settings: dict[str, str | None] = {}
    model = manifests.models().get(service)
    published = model.checkpoints if model else {}
    suite = suite if published else None
    if model and (suite or checkpoint):
        if not checkpoint and suite not in published:
            raise LabError(
                unknown("suite", suite or "", published) + "; use --checkpoint for a checkpoint of another suite"
            )
        command = f"./lab checkpoint {service} " + (f"--suite {suite}" if suite in published else "--tiny")
        name = existing_checkpoint(checkpoint or published[suite or ""], command)
        settings[variable(service, "CHECKPOINT")] = name
        if model.suite_setting:
            settings[variable(service, model.suite_setting)] = suite if suite in manifests.suites() else None
    options = model_options(service) if model and model_flags else {}
    settings |= {variable(service, name.upper()): value for name, value in model_flags.items() if name in options}
    if gpu and service in compose.gpu_services():
        devices = gpu if gpu in ("auto", "all", "none") else ",".join(gpus.devices(gpu, "--gpu"))
        settings[variable(service, "GPU")] = None if gpu == "auto" else devices
    if variant and variants.of(service):
        variants.select(service, variant)
        settings[variants.variable(service)] = None if variant == "auto" else variant
    return settings


def model_options(service: str) -> Mapping[str, Option]:
    """Return a model's options that are flags of `up`."""
    location = manifests.models()[service].options.get("up")
    options = shared_code.options(location) if location else {}
    return {name: option for name, option in options.items() if option.group != "internal" and name != "checkpoint"}


def for_services(
    names: Sequence[str], suite: str | None, checkpoint: str | None, gpu: str | None,
    model_flags: Mapping[str, str] = MappingProxyType({}), variant: str | None = None,
) -> dict[str, Settings]:  # fmt: skip
    """Return the settings of several services for the flags of `up`. Raise LabError for a flag that applies to none."""
    models = manifests.models()
    fitting = {  # flag → its value, and the services that it applies to
        "--suite": (suite, [name for name, model in models.items() if model.checkpoints]),
        "--checkpoint": (checkpoint, models),
        "--gpu": (gpu not in (None, "auto", "none"), compose.gpu_services()),
        "--variant": (variant, variants.environments()),
    }
    for flag in model_flags:
        fitting[f"--{flag.replace('_', '-')}"] = (True, [name for name in models if flag in model_options(name)])
    for flag, (value, services) in fitting.items():
        if value and not set(names) & set(services):
            raise LabError(f"{flag} applies to {', '.join(services)}, not to {', '.join(names)}")
    return {name: from_flags(name, suite, checkpoint, gpu, model_flags, variant) for name in names}


def checkpoints_on_volume() -> list[str]:
    """Return the names of the directories in checkpoints/ on the volume, except those of course labs."""
    names = (path.name for path in (paths.volume() / "checkpoints").glob("*") if path.is_dir())
    return sorted(set(names) - set(runs.PREFIXES))


def existing_checkpoint(name: str, advice: str = "") -> str:
    """Return a checkpoint's name on the volume, or its absolute path. Raise LabError if it is not found."""
    directory, path = paths.volume() / "checkpoints", Path(name).expanduser().absolute()
    if "/" not in name and (directory / name).is_dir():
        return name
    if path.is_dir():
        return str(path)
    existing = ", ".join(checkpoints_on_volume()) or "none"
    advice = advice or "./lab checkpoint " + " or ".join(manifests.models())
    raise LabError(
        f"checkpoint '{name}' not found in {paths.display_path(directory)}; existing: {existing}. Get one: {advice}"
    )


def from_shell(service: str) -> dict[str, str]:
    """Return a service's variables that the shell sets, without those that .env sets to the same value."""
    dotenv, prefix = compose.read_dotenv(paths.ROOT / ".env"), variable(service, "")
    shell = {name: value for name, value in os.environ.items() if name.startswith(prefix) and value}
    return {name: value for name, value in shell.items() if value != dotenv.get(name)}


# --- storage --------------------------------------------------------------------------------------------------


def stored(service: str) -> dict[str, str]:
    """Return the stored settings of a service; empty if there are none, or the file is damaged."""
    try:
        stored = json.loads(state.read(state.directory(make=False) / f"{service}.settings") or "{}")
        return {name: str(value) for name, value in stored.items() if belongs_to(service, name)}
    except (ValueError, AttributeError, RecursionError):
        return {}


def merged(old: Mapping[str, str], new: Settings) -> dict[str, str]:
    """Return `old` updated by `new`, without the variables that it resets."""
    return {name: value for name, value in {**old, **new}.items() if value is not None}


def save(service: str, values: Mapping[str, str]) -> None:
    """Store the settings of a service."""
    if not values:
        return forget(service)
    state.write(state.directory() / f"{service}.settings", json.dumps(values, indent=1))


def forget(service: str) -> None:
    """Delete the stored settings of a service that was stopped."""
    (state.directory(make=False) / f"{service}.settings").unlink(missing_ok=True)


def of_all(services: list[str]) -> dict[str, str]:
    """Return the stored settings of several services in one mapping."""
    return {name: value for service in services for name, value in stored(service).items()}


# --- running services ------------------------------------------------------------------------


def names_of(service: str) -> set[str]:
    """Return the variables in a service's Compose entries, except the ports of other services."""
    return compose.variables_of(service) - {ports.port_variable(name) for name in compose.names() if name != service}


def of_container(service: str, environment: Mapping[str, str], command: list[str]) -> dict[str, str]:
    """Return the settings in a container's configuration, from values that consist of one variable."""
    written = compose.written(service)
    pairs = [(text, environment[name]) for name, text in written["environment"].items() if name in environment]
    pairs += list(zip(map(str, written.get("command") or ()), command, strict=False))
    matches = [(match, value) for text, value in pairs if (match := _SINGLE_VARIABLE.fullmatch(str(text)))]
    values = {match[1]: "" if _is_default(match[2], value) else value for match, value in matches}
    names = names_of(service) - {ports.port_variable(service)}  # may have been changed automatically
    return {name: value for name, value in values.items() if name in names}


def _is_default(default: str, value: str) -> bool:
    """Return whether a value is a default that contains other variables, so it was not requested."""
    if variable_match := _SINGLE_VARIABLE.fullmatch(default):  # a list of services, whose ports may have changed
        return _PORT.sub("", value) == _PORT.sub("", compose.discovered({}).get(variable_match[1], ""))
    parts = _VARIABLE.split(default)
    return len(parts) > 1 and re.fullmatch(".*".join(map(re.escape, parts)), value) is not None


def differing(service: str, current: Mapping[str, str], requested: Mapping[str, str]) -> list[str]:
    """Return the variables whose requested values would change a running service."""
    before = compose.filled(service, current)
    overrides = {name: requested[name] for name in current if name in requested}
    return sorted(name for name in overrides if compose.filled(service, {**current, name: overrides[name]}) != before)


def belongs_to(service: str, name: str) -> bool:
    """Return whether a variable is for that service only."""
    return name.startswith(variable(service, ""))
