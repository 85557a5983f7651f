"""The two runtimes, services as local processes (vlalab.runtimes.local) or as containers (vlalab.runtimes.containers),
and the choice between them.

A runtime is a module with NAME and these functions, which have the same parameters in both: `instances`, `instance`,
`prepare`, `start`, `start_command`, `close`, `address`, `run`, `shell`, `follow_log`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import TypeAlias

from vlalab.engine import docker, images
from vlalab.host.console import LabError, check_choices
from vlalab.runtimes import containers, local, logs, state_files

NAMES = ("auto", "local", "docker")
READY_TIMEOUT_S = 900.0  # a large checkpoint is read from a slow disk
POLL_S = (0.2, 1.0)  # first and longest interval; each poll of an engine starts processes
Instance: TypeAlias = state_files.Instance | containers.Container


Runtime: TypeAlias = ModuleType

_MODULES = {"local": local, "docker": containers}


def runtime_of(instance: Instance) -> Runtime:
    """Return the runtime that an instance runs in."""
    return _MODULES[instance.runtime]


def choose(name: str, environments: Sequence[str], prefer: str | None = None) -> tuple[Runtime, str]:
    """Return the runtime for --runtime, and a line for the user that names it.

    auto is `prefer` if a dependency already runs there; else docker if an engine answers and the images of these
    environments are built; else local. Raises LabError for an unknown name, or if docker cannot be used.
    """
    check_choices("runtime", [name], NAMES)
    if name == "local" or (name == "auto" and prefer == "local"):
        return local, "runtime local"
    no_engine = reason = docker.available()
    if not no_engine:
        built = images.existing(environments)
        missing = [environment for environment in environments if environment not in built]
        reason = images.unusable(missing[0], None) if missing else None
    if not reason:
        return containers, "runtime docker"
    if name == "docker":
        raise LabError(reason if "--runtime local" in reason else f"{reason}, or use --runtime local")
    return local, "runtime local" if no_engine else f"runtime local ({reason})"


def instances() -> list[Instance]:
    """Return the running instances of both runtimes."""
    with ThreadPoolExecutor() as pool:
        return [
            instance for group in pool.map(lambda module: module.instances(), _MODULES.values()) for instance in group
        ]


def find(name: str) -> Instance | None:
    """Return the running instance of that name, in either runtime."""
    return next((instance for instance in instances() if instance.name == name), None)


def wait_ready(
    runtime: Runtime, name: str, timeout_s: float = READY_TIMEOUT_S, on_wait: Callable[[], None] = lambda: None
) -> Instance:
    """Return the instance of that name once its health check succeeds.

    Raises LabError, with the end of its log, if it ended or was not ready in time; the caller then stops it.
    """
    started = time.monotonic()
    instance = previous = runtime.instance(name)
    while True:
        if instance is None or instance.restarts:
            raise LabError(start_failure(name, "ended before it was ready", previous))
        if instance.is_healthy():
            return instance
        waited_s = time.monotonic() - started
        if waited_s > timeout_s:
            raise LabError(start_failure(name, f"was not ready within {timeout_s:.0f} s", instance))
        on_wait()
        time.sleep(min(max(POLL_S[0], waited_s / 20), POLL_S[1]))
        previous, instance = instance, runtime.instance(name)


def start_failure(name: str, problem: str, instance: Instance | None) -> str:
    """Return the message for a service that did not become ready: the cause, then the end of the log of this start."""
    text = instance.log_tail() if instance else ""
    cause = f": {logs.cause(text)}" if text else ""
    return f"service '{name}' {problem}{cause}\nthe end of its log since it was started:\n{text}"
