"""The state files of the local runtime: which processes this caller has started, and as what.

They never say what to run: command, health check, ports, log and grace period come from compose.yaml, read with the
variables that a service was started with. What such a file says is checked before it is used; one that is damaged, of
another version or of another user is told and ignored.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from vlalab.description import ports
from vlalab.host import memory, state
from vlalab.host.console import say
from vlalab.host.processes import Identity, command

VERSION = 2
SUPERVISOR = "vlalab.runtimes.supervisor"
BIND = "VLALAB_BIND"
MAX_PID = 2**22  # proc(5): pid_max on 64-bit systems
_NAME = re.compile(r"[A-Za-z0-9][\w-]{0,99}")


@dataclass(frozen=True)
class Record:
    """What a state file says. Raises ValueError or TypeError for what none of this version does."""

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

    def __post_init__(self) -> None:
        _expect(_is(str, self.name, self.service, self.gpu) and _NAME.fullmatch(self.name), "name", self.name)
        _expect(_NAME.fullmatch(self.service), "service", self.service)
        _expect(_is(bool, self.attached), "attached", self.attached)
        _expect(_is(float, self.started_at) and math.isfinite(self.started_at), "started_at", self.started_at)
        _expect(re.fullmatch(r"[\w,:/-]{0,200}", self.gpu), "gpu", self.gpu)
        _expect(_is(int, self.starts) and self.starts > 0, "starts", self.starts)
        _expect(self.last_exit is None or _is(int, self.last_exit), "last_exit", self.last_exit)
        for one in (self.supervisor, *([self.child] if self.child else [])):
            _expect(_is(int, one.pid, one.start_ticks) and _is(str, one.boot_id), "process", one)
            _expect(1 < one.pid <= MAX_PID, "process", one)
        self._check_variables()

    def _check_variables(self) -> None:
        port = ports.port_variable(self.service)
        prefix = port.removesuffix("PORT")
        for name, value in self.variables.items():
            _expect(_is(str, name, value) and name.startswith(prefix), "variable", name)
        for name, value in self.placed.items():
            _expect(_is(str, name, value) and name in (BIND, port), "variable", name)
        number = self.placed.get(port, "1")
        _expect(re.fullmatch(r"[0-9]{1,5}", number) and 0 < int(number) < 65536, port, number)
        _expect(re.fullmatch(r"[0-9a-fA-F.:\[\]]+|localhost", self.placed.get(BIND, "localhost")), BIND, self.placed)

    def runs(self, path: Path) -> bool:
        """Returns whether that very supervisor, started by this caller for this file, still runs.

        It outlives updates of the clone, so its module may lie elsewhere by now: the name's end is enough.
        """
        words = command(self.supervisor.pid)[1:]
        fits = len(words) == 3 and words[::2] == ["-m", str(path)] and words[1].endswith(".supervisor")
        return self.supervisor.is_ours() and fits

    def own_child(self) -> Identity | None:
        """Returns the service's process, if it is this supervisor's."""
        if self.child is None or not self.child.is_ours():
            return None
        return self.child if memory.stat_fields(self.child.pid)[1:2] == [str(self.supervisor.pid)] else None


def _is(kind: type, *values: object) -> bool:
    return all(type(value) is kind for value in values)


def _expect(fits: object, what: str, value: object) -> None:
    if not fits:
        raise ValueError(f"{what} is {value!r}")


def write(path: Path, record: Record) -> None:
    """Writes a state file, whole or not at all."""
    state.write(path, json.dumps({"version": VERSION, **asdict(record)}, indent=1))


def read(path: Path) -> Record | None:
    """Returns what a state file says; None where there is none, or (which is said) none that can be used."""
    try:
        text = state.read(path)
        return None if text is None else _parsed(text, path.stem)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        say(f"ignoring {path}, which is no state file of this version ({error}); remove it")
        return None


def _parsed(text: str, name: str) -> Record:
    fields = json.loads(text)
    _expect(fields.pop("version", None) == VERSION, "version", "another")
    _expect(fields["name"] == name, "name", fields["name"])
    fields["supervisor"] = Identity(**fields["supervisor"])
    fields["child"] = Identity(**fields["child"]) if fields["child"] else None
    return Record(**fields)
