"""The two runtimes behind one interface: services as local processes (vlalab.runtimes.local) or as containers
(vlalab.runtimes.containers), and which of them is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from vlalab.engine import docker, images
from vlalab.host.console import LabError, require_known
from vlalab.runtimes import containers, local
from vlalab.runtimes.running import Instance

NAMES = ("auto", "local", "docker")


class Runtime(Protocol):
    """What both modules offer. Every `…_command` returns the command line for a dry run and changes nothing."""

    NAME: str

    def instances(self) -> list[Instance]:
        """Returns what runs."""

    def instance(self, name: str) -> Instance | None:
        """Returns the running instance of that name."""

    def prepare(self, names: Sequence[str]) -> None:
        """Sees to it that these environments can be used, or raises LabError."""

    def start(
        self,
        service_name: str,
        variables: Mapping[str, str] | None = None,
        *,
        instance_name: str | None = None,
        attached: bool = False,
    ) -> Instance:
        """Returns a started instance. attached: a private one, which ends with this process."""

    def start_command(
        self, service_name: str, variables: Mapping[str, str] | None = None, *, attached: bool = False
    ) -> str: ...

    def wait_ready(self, name: str, timeout_s: float = 0, on_wait: Callable[[], None] = lambda: None) -> Instance:
        """Returns the instance once it is healthy, or raises LabError with the end of its log."""

    def close(self, found: Instance, keep_log: bool) -> None:
        """Stops a private instance."""

    def address(self, found: Instance) -> str:
        """Returns where this runtime's programs reach an instance."""

    def run(
        self,
        service_name: str,
        command: Sequence[str],
        variables: Mapping[str, str] | None = None,
        *,
        listens: str = "",
    ) -> int:
        """Runs a command as that service would be run, in the foreground; returns its exit code.

        listens: where the network asks it, "host:port", if it is a command that listens.
        """

    def run_command(
        self,
        service_name: str,
        command: Sequence[str],
        variables: Mapping[str, str] | None = None,
        *,
        listens: str = "",
    ) -> str: ...

    def shell(self, service_name: str, command: str | None = None) -> int:
        """Opens a shell where that service runs; returns its exit code."""

    def shell_command(self, service_name: str, command: str | None = None) -> str: ...

    def follow_log(self, name: str, lines: int, follow: bool) -> None:
        """Prints the end of a log."""


_MODULES: dict[str, Runtime] = {"local": local, "docker": containers}


def of(found: Instance) -> Runtime:
    """Returns the runtime that an instance runs in."""
    return _MODULES[found.runtime]


def choose(name: str, environments: Sequence[str], prefer: str | None = None) -> tuple[Runtime, str]:
    """Returns the runtime for --runtime, and one line that says which.

    auto is `prefer`, where something that is needed runs already; else docker when an engine answers and the images of
    these environments are built; else local. Raises LabError for an unknown name, and for docker where it cannot be.
    """
    require_known("runtime", [name], NAMES)
    if name == "local" or (name == "auto" and prefer == "local"):
        return local, "runtime local"
    if reason := _lack(environments):
        if name == "docker":
            raise LabError(reason if "--runtime local" in reason else f"{reason}, or use --runtime local")
        return local, "runtime local" if docker.available() else f"runtime local ({reason})"
    return containers, "runtime docker"


def _lack(environments: Sequence[str]) -> str | None:
    """Returns why these environments cannot be containers, or None."""
    if reason := docker.available():
        return reason
    built = images.found(environments)
    missing = [name for name in dict.fromkeys(environments) if name not in built]
    return images.unusable(missing[0], None) if missing else None


def instances() -> list[Instance]:
    """Returns what runs, in both runtimes."""
    with ThreadPoolExecutor() as pool:
        return [found for some in pool.map(lambda module: module.instances(), _MODULES.values()) for found in some]


def find(name: str) -> Instance | None:
    """Returns the running instance of that name, in whichever runtime."""
    return next((found for found in instances() if found.name == name), None)
