"""What a check is, what it is asked about, and what it finds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlalab.description import manifests
from vlalab.doctor.machine import Live, Machine
from vlalab.host import paths

PASS, WARN, FAIL, SKIP = "pass", "warn", "fail", "skip"  # skip: does not apply here
VERDICTS = (PASS, SKIP, WARN, FAIL)  # from the best to the worst
GROUPS = ("host", "docker", "nvidia", "graphics", "network", "project", "environment")


@dataclass(frozen=True)
class Finding:
    """What a check found: a verdict, why in one line, and the command that mends it."""

    verdict: str
    why: str
    fix: str = ""  # a command line
    hint: str = ""  # what to do in words, where no one command does it
    safe: bool = False  # `--fix` runs the command without asking
    facts: Mapping[str, Any] = field(default_factory=dict)  # for --json

    @property
    def text(self) -> str:
        """Returns it as a refusal says it: why, and what to do."""
        then = self.hint + (": " * bool(self.hint)) + self.fix if self.fix else self.hint
        return f"{self.why}; {then}" if then else self.why


def ok(why: str, **more: Any) -> Finding:
    """Returns that all is well."""
    return Finding(PASS, why, **more)


def skip(why: str, **more: Any) -> Finding:
    """Returns that a check does not apply here."""
    return Finding(SKIP, why, **more)


def warn(why: str, **more: Any) -> Finding:
    """Returns what is worth knowing and stops nothing."""
    return Finding(WARN, why, **more)


def fail(why: str, **more: Any) -> Finding:
    """Returns what stops work."""
    return Finding(FAIL, why, **more)


def refused(verdict: str, text: str) -> Finding:
    """Returns the finding for a sentence of a refusal, "why; what to do: command": both say the same words."""
    why, _, then = text.partition("; ")
    found = re.fullmatch(r"(?:([^:`]*?): )?((?:sudo|docker|\./lab|chmod|systemctl) [^;()]*)", then)
    return Finding(verdict, why, found[2], found[1] or "") if found else Finding(verdict, why, hint=then)


@dataclass(frozen=True)
class Case:
    """What is looked at: a machine, a clone, a volume, and the environments that were asked about (none: all)."""

    machine: Machine = field(default_factory=Live)
    environments: tuple[str, ...] = ()
    root: Path = paths.ROOT
    volume: Path = field(default_factory=paths.volume)
    offline: bool = False
    no_cache: bool = False  # images are going to be built without what is kept of earlier builds

    def known(self) -> dict[str, manifests.Environment]:
        """Returns the manifests of the environments in question."""
        known = manifests.environments()
        return {name: known[name] for name in self.environments or known}


Probe = Callable[[Case], Finding]


@dataclass(frozen=True)
class Check:
    """One thing that can be wrong."""

    id: str
    title: str
    meaning: str  # what it means when it is not in order
    severity: str  # the worst that it says
    fix: str  # what to type, in general; a finding names the very command
    probe: Probe
    group: str = ""
    needs: str = ""  # "torch" or "gl": it concerns environments with that alone
    before: tuple[str, ...] = ()  # tasks that ask for it before they begin
    limit_s: float = 6.0
    named_limit_s: float = 0.0  # where an environment was named, if it looks closer then

    def concerns(self, case: Case) -> bool:
        """Returns whether it says something about the environments in question."""
        has = {"": lambda one: True, "torch": lambda one: one.torch is not None, "gl": lambda one: one.needs_gl}
        return any(map(has[self.needs], case.known().values()))


@dataclass(frozen=True)
class Result:
    """A check and what it found; `error`: it broke, or took too long, and found nothing."""

    check: Check
    finding: Finding
    seconds: float
    error: str = ""
