"""What runs as a local process: an instance is a state file, read together with compose.yaml.

The state file (`records`) says which process it is, compose.yaml what that is: where it answers, how it is asked
for its health and how long it has to stop. So whoever could write a state file still could not have anything run.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from vlalab.description import compose
from vlalab.description.compose import Service
from vlalab.description.ports import reachable
from vlalab.host import memory, state
from vlalab.host.console import LabError
from vlalab.host.processes import Identity, command
from vlalab.runtimes import held, logs, probe, records
from vlalab.runtimes.records import Record

NAME = "local"
GRACE_S = 10.0  # of a service that compose.yaml no longer has: Docker's own default


@dataclass(frozen=True)
class Instance:
    """A running service."""

    runtime: ClassVar[str] = NAME
    name: str
    service: str
    url: str
    role: str
    attached: bool
    log_path: Path
    check: str  # the URL that its health check asks; empty: it has none
    check_timeout_s: float
    stop_grace_s: float
    started_at: float
    supervisor: Identity
    child: Identity | None
    starts: int
    last_exit: int | None
    gpu: str = ""  # which GPUs it may see: "0,1", "none"; empty: all
    variables: Mapping[str, str] = field(default_factory=dict)  # its own ones that it was started with

    @property
    def restarts(self) -> int:
        """How often it was started again."""
        return self.starts - 1

    @property
    def is_up(self) -> bool:
        """Whether its process runs."""
        return self.child is not None and self.child.is_alive()

    def words(self) -> list[str]:
        """Returns the command line of its process; nothing while there is none."""
        return command(self.child.pid) if self.is_up and self.child else []

    def owns(self, pid: int) -> bool:
        """Returns whether a process is one of its own."""
        return self.child is not None and memory.belongs_to_session(pid, self.child.pid)

    def is_healthy(self) -> bool:
        """Returns whether its health check succeeds."""
        return self.is_up and probe.is_ready(self.check, self.check_timeout_s)

    def has_ended(self) -> bool:
        """Returns whether nobody will start it again."""
        return not self.supervisor.is_alive()

    def started_with(self) -> dict[str, str]:
        """Returns the settings in its supervisor's environment."""
        return held.of_process(self.supervisor.pid, self.service)

    def stop(self) -> None:
        """Stops it: SIGTERM, its grace period, then SIGKILL. Somebody else's process is never touched."""
        self.supervisor.send(signal.SIGTERM)
        if not self.supervisor.wait_gone(self.stop_grace_s + 3):
            self.supervisor.send(signal.SIGKILL)
        if self.child and not self.child.wait_gone(1.0):
            self.child.send(signal.SIGKILL)
        state_path(self.name, make=False).unlink(missing_ok=True)

    def last_words(self, lines: int = 15) -> str:
        """Returns the end of its log, of this start only."""
        return logs.last_words(self.log_path, lines, self.started_at)


def state_path(name: str, make: bool = True) -> Path:
    """Returns where the state file of an instance lies."""
    return state.folder(make=make) / f"{name}.json"


def instances() -> list[Instance]:
    """Returns what this caller runs on this machine; state files of processes that are gone are taken away."""
    return [found for path in sorted(state.folder(make=False).glob("*.json")) if (found := load(path))]


def instance(name: str) -> Instance | None:
    """Returns the running instance of that name."""
    return load(state_path(name, make=False))


def load(path: Path) -> Instance | None:
    """Returns the instance of a state file, if it runs."""
    record = records.read(path)
    if record is None:
        return None
    if not record.runs(path):
        path.unlink(missing_ok=True)
        return None
    return _described(record)


def _described(record: Record) -> Instance:
    service = _service(record)
    health = service.health if service else None
    return Instance(
        name=record.name,
        service=record.service,
        url=url(service) if service else "",
        role=service.role if service else "service",
        attached=record.attached,
        log_path=logs.place(record.name, record.attached),
        check=check_url(service) if service else "",
        check_timeout_s=health.timeout_s if health else 0.0,
        stop_grace_s=service.stop_grace_s if service else GRACE_S,
        started_at=record.started_at,
        supervisor=record.supervisor,
        child=record.own_child(),
        starts=record.starts,
        last_exit=record.last_exit,
        gpu=record.gpu,
        variables=record.variables,
    )


def _service(record: Record) -> Service | None:
    """Returns what compose.yaml says about a service that was started with those variables; None: nothing."""
    known = {**compose.environment_variables(compose.FILE.parent), **record.variables, **record.placed}
    try:
        return compose.read(compose.FILE, known).get(record.service)
    except LabError:  # it was edited since, and is not readable just now
        return None


def url(service: Service) -> str:
    """Returns where this machine reaches a service, "" for one that has no port."""
    return f"http://{_address(service)}:{service.ports[0].published}" if service.ports else ""


def check_url(service: Service) -> str:
    """Returns the URL that its health check asks, as this machine reaches it; "" where there is none to ask."""
    asked = probe.asked_by(service.health.test) if service.health and service.ports else ""
    return asked.replace("//127.0.0.1:", f"//{_address(service)}:", 1)  # inside is outside here


def _address(service: Service) -> str:
    return reachable(service.ports[0].bind)
