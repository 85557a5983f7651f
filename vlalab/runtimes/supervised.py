"""Services that run as local processes: their state files, read together with compose.yaml.

A state file says which processes this caller started, and with which variables. It never says what to run: command,
health check, ports, log and grace period come from compose.yaml. One that is damaged, of another version or another
user's is reported and ignored.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from vlalab.description import compose
from vlalab.description.compose import Service
from vlalab.description.ports import reachable
from vlalab.host import borrowed, memory, state
from vlalab.host.console import LabError, say
from vlalab.host.processes import Identity, command
from vlalab.runtimes import logs, service_state

NAME = "local"
VERSION = 2  # of state files
SUPERVISOR = "vlalab.runtimes.supervisor"
GRACE_S = 10.0  # of a service that compose.yaml no longer has: Docker's own default

_HEALTHCHECK = borrowed.module("vla_common.healthcheck")


@dataclass(frozen=True)
class Record:
    """The content of a state file."""

    name: str
    service: str
    attached: bool
    started_at: float  # seconds since the epoch
    gpu: str  # which GPUs it may see: "0,1", "none"; empty: all
    variables: Mapping[str, str]  # its own ones that it was started with
    placed: Mapping[str, str]  # the variables that say where it listens
    supervisor: Identity
    child: Identity | None
    starts: int
    last_exit: int | None

    def runs(self, path: Path) -> bool:
        """Return whether that very supervisor, started by this caller for this file, still runs.

        It outlives updates of the clone, so its module may have moved since: the end of the name is enough.
        """
        words = command(self.supervisor.pid)[1:]
        fits = len(words) == 3 and words[::2] == ["-m", str(path)] and words[1].endswith(".supervisor")
        return fits and self.supervisor.is_ours()

    def own_child(self) -> Identity | None:
        """Return the service's process, if it is this supervisor's."""
        if self.child is None or not self.child.is_ours():
            return None
        return self.child if memory.stat_fields(self.child.pid)[1:2] == [str(self.supervisor.pid)] else None


@dataclass(frozen=True)
class Instance(Record):
    """A running service: its state file, and what compose.yaml says of it."""

    runtime: ClassVar[str] = NAME
    url: str
    role: str
    log_path: Path
    check: str  # the URL that its health check asks; empty: it has none
    check_timeout_s: float
    stop_grace_s: float

    @property
    def restarts(self) -> int:
        """How often it was started again."""
        return self.starts - 1

    @property
    def is_up(self) -> bool:
        """Whether its process runs."""
        return self.child is not None and self.child.is_alive()

    def words(self) -> list[str]:
        """Return the command line of its process; nothing while there is none."""
        return command(self.child.pid) if self.is_up and self.child else []

    def owns(self, pid: int) -> bool:
        """Return whether a process is one of its own."""
        return self.child is not None and memory.belongs_to_session(pid, self.child.pid)

    def memory(self) -> int | None:
        """Return the bytes that it uses, None where no process runs."""
        return memory.of_session(self.child.pid) if self.child else None

    def is_healthy(self) -> bool:
        """Return whether its health check succeeds."""
        return self.is_up and bool(_HEALTHCHECK.check(self.check, self.check_timeout_s)[0])

    def has_ended(self) -> bool:
        """Return whether it ended for good."""
        return not self.supervisor.is_alive()

    def started_with(self) -> dict[str, str]:
        """Return the settings in its supervisor's environment."""
        return service_state.of_process(self.supervisor.pid, self.service)

    def stop(self) -> None:
        """Stop it: SIGTERM, its grace period, then SIGKILL. Other users' processes are never touched."""
        self.supervisor.send(signal.SIGTERM)
        if not self.supervisor.wait_gone(self.stop_grace_s + 3):
            self.supervisor.send(signal.SIGKILL)
        if self.child and not self.child.wait_gone(1.0):
            self.child.send(signal.SIGKILL)
        state_path(self.name, make=False).unlink(missing_ok=True)

    def last_words(self, lines: int = 15) -> str:
        """Return the end of its log, of this start only."""
        return logs.last_words(self.log_path, lines, self.started_at)


def state_path(name: str, make: bool = True) -> Path:
    """Return the path of an instance's state file."""
    return state.folder(make=make) / f"{name}.json"


def write(path: Path, record: Record) -> None:
    """Write a state file, whole or not at all."""
    state.write(path, json.dumps({"version": VERSION, **asdict(record)}, indent=1))


def read(path: Path) -> Record | None:
    """Return the content of a state file; None where there is none, or (which is reported) none that can be used."""
    try:
        text = state.read(path)
        if text is None:
            return None
        fields = json.loads(text)
        version, processes = fields.pop("version"), (fields["supervisor"], fields["child"])
        if version != VERSION or fields["name"] != path.stem:
            raise ValueError(f"version {version!r} of '{fields['name']}'")
        supervisor, child = (None if process is None else Identity(**process) for process in processes)
        if supervisor is None:
            raise ValueError("no supervisor")
        return Record(**{**fields, "supervisor": supervisor, "child": child})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        say(f"ignoring {path}, which is not a state file of this version ({error}); remove it")
        return None


def instances() -> list[Instance]:
    """Return what this caller runs on this machine; state files of processes that are gone are removed."""
    return [found for path in sorted(state.folder(make=False).glob("*.json")) if (found := load(path))]


def instance(name: str) -> Instance | None:
    """Return the running instance of that name."""
    return load(state_path(name, make=False))


def load(path: Path) -> Instance | None:
    """Return the instance of a state file, if it runs."""
    record = read(path)
    if record is None:
        return None
    if not record.runs(path):
        path.unlink(missing_ok=True)
        return None
    try:
        known = {**compose.environment_variables(compose.FILE.parent), **record.variables, **record.placed}
        service = compose.read(compose.FILE, known).get(record.service)
    except LabError:  # compose.yaml was edited since, and cannot be read at the moment
        service = None
    return Instance(
        **{**vars(record), "child": record.own_child()},
        url=f"http://{_address(service)}:{service.ports[0].published}" if service and service.ports else "",
        role=service.role if service else "service",
        log_path=logs.place(record.name, record.attached),
        check=check_url(service) if service else "",
        check_timeout_s=service.health.timeout_s if service and service.health else 0.0,
        stop_grace_s=service.stop_grace_s if service else GRACE_S,
    )


def check_url(service: Service) -> str:
    """Return the URL that a health check asks, as this machine reaches it; "" where there is none to ask."""
    test = service.health.test if service.health and service.ports else ()
    if len(test) != 4 or test[:3] != ("python", "-m", _HEALTHCHECK.__name__):
        return ""
    return test[3].replace("//127.0.0.1:", f"//{_address(service)}:", 1)  # outside a container it listens elsewhere


def _address(service: Service) -> str:
    return reachable(service.ports[0].bind)
