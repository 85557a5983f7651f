"""State files of local services.

A state file identifies the processes that this caller started; it never contains a command to run. A file that is
damaged, of another version or owned by another user is reported and ignored.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from vlalab.host import memory, shared_code, state
from vlalab.host.console import log_info
from vlalab.host.processes import Identity, command, stat_fields
from vlalab.runtimes import logs

NAME = "local"
VERSION = 3  # of state files
SUPERVISOR = "vlalab.runtimes.supervisor"
SETTINGS = "VLALAB_SETTINGS"  # variable of a supervisor: its service's settings, as JSON
HEALTHCHECK = shared_code.module("vla_common.healthcheck")


@dataclass(frozen=True)
class Instance:
    """A running service: the content of its state file."""

    runtime: ClassVar[str] = NAME
    name: str
    service: str
    started_at: float  # seconds since the epoch
    supervisor: Identity
    child: Identity | None
    starts: int
    last_exit: int | None
    attached: bool = False
    role: str = "service"
    gpu: str = ""  # visible GPUs: "0,1", "none"; empty: all
    url: str = ""
    check: str = ""  # URL of the health check; empty: none
    check_timeout_s: float = 0.0
    stop_grace_s: float = 10.0
    variables: Mapping[str, str] = field(default_factory=dict)  # further variables, for its starter

    @property
    def restarts(self) -> int:
        """The number of restarts."""
        return self.starts - 1

    @property
    def is_up(self) -> bool:
        """Whether its process runs."""
        return self.child is not None and self.child.is_alive()

    def owns(self, pid: int) -> bool:
        """Return whether a process belongs to it."""
        return self.child is not None and memory.belongs_to_session(pid, self.child.pid)

    def memory(self) -> int | None:
        """Return the bytes that it uses, None where no process runs."""
        return memory.of_session(self.child.pid) if self.child else None

    def is_healthy(self) -> bool:
        """Return whether its health check succeeds."""
        return self.is_up and bool(HEALTHCHECK.check(self.check, self.check_timeout_s)[0])

    def has_ended(self) -> bool:
        """Return whether it ended and will not be restarted."""
        return not self.supervisor.is_alive()

    def started_with(self) -> dict[str, str]:
        """Return the settings in its supervisor's environment, which only its user can read; none if it has ended."""
        try:
            text = Path(f"/proc/{self.supervisor.pid}/environ").read_text(errors="surrogateescape")
        except OSError:
            return {}
        variables = dict(line.partition("=")[::2] for line in text.split("\0"))
        return dict(json.loads(variables.get(SETTINGS, "{}")))

    def stop(self) -> None:
        """Stop it: SIGTERM, its grace period, then SIGKILL. Other users' processes are never touched."""
        self.supervisor.send(signal.SIGTERM)
        if not self.supervisor.wait_gone(self.stop_grace_s + 3):
            self.supervisor.send(signal.SIGKILL)
        if self.child and not self.child.wait_gone(1.0):
            self.child.send(signal.SIGKILL)
        state_path(self.name, make=False).unlink(missing_ok=True)

    def log_tail(self, lines: int = 15) -> str:
        """Return the end of its log, of this start only."""
        return logs.tail(logs.log_path(self.name, self.attached), lines, self.started_at)


def state_path(name: str, make: bool = True) -> Path:
    """Return the path of an instance's state file."""
    return state.directory(make=make) / f"{name}.json"


def write(path: Path, instance: Instance) -> None:
    """Write a state file atomically."""
    state.write(path, json.dumps({"version": VERSION, **asdict(instance)}, indent=1))


def read(path: Path) -> Instance | None:
    """Return the content of a state file; None if it does not exist or (after a message) cannot be used."""
    try:
        if (text := state.read(path)) is None:
            return None
        fields = json.loads(text)
        if fields.pop("version") != VERSION or fields["name"] != path.stem:
            raise ValueError("another version or service")
        child, fields["supervisor"] = fields["child"], Identity(**fields["supervisor"])
        return Instance(**{**fields, "child": child and Identity(**child)})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        log_info(f"ignoring {path}, which is not a valid state file of this version ({error}); remove it")
        return None


def instances() -> list[Instance]:
    """Return this caller's running instances; remove state files of ended processes."""
    return [running for path in sorted(state.directory(make=False).glob("*.json")) if (running := load(path))]


def instance(name: str) -> Instance | None:
    """Return the running instance of that name."""
    return load(state_path(name, make=False))


def load(path: Path) -> Instance | None:
    """Return the instance of a state file if its supervisor runs, without a child that is not the supervisor's."""
    instance = read(path)
    if instance is None:
        return None
    supervisor, child = instance.supervisor, instance.child
    if command(supervisor.pid)[1:] != ["-m", SUPERVISOR, str(path)] or not supervisor.belongs_to_caller():
        path.unlink(missing_ok=True)
        return None
    if child and not (child.belongs_to_caller() and stat_fields(child.pid)[1:2] == [str(supervisor.pid)]):
        return replace(instance, child=None)
    return instance
