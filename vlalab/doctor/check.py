"""Doctor checks: the check itself, the context that it examines, and the finding that it reports."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from vlalab.description import manifests, variants
from vlalab.doctor.machine import Machine
from vlalab.host import paths

PASS, WARN, FAIL, SKIP = "pass", "warn", "fail", "skip"  # skip: does not apply here
VERDICTS = (PASS, SKIP, WARN, FAIL)  # from best to worst
GROUPS = ("host", "docker", "nvidia", "graphics", "network", "project", "volume")  # the modules of checks/


@dataclass(frozen=True)
class Finding:
    """The result of a probe: a verdict, the reason in one line, and the command that fixes the problem."""

    verdict: str
    reason: str
    fix: str | None = None  # a command line, "" for none; None: the check's usual fix
    hint: str = ""  # advice as text, before the command or instead of one
    safe: bool = False  # `--fix` runs the command without asking
    details: Mapping[str, Any] = field(default_factory=dict)  # for --json

    @property
    def text(self) -> str:
        """The reason and what to do, as one sentence."""
        action = ": ".join(filter(None, (self.hint, self.fix)))
        return f"{self.reason}; {action}" if action else self.reason


ok, skip, warn, fail = (partial(Finding, verdict) for verdict in (PASS, SKIP, WARN, FAIL))


def from_refusal(verdict: str, message: str) -> Finding:
    """Return the finding for an error message of the form "reason; advice: command"."""
    reason, _, action = message.partition("; ")
    match = re.fullmatch(r"(?:([^:`]*?): )?((?:sudo|docker|\./lab|chmod|systemctl) [^;()]*)", action)
    return Finding(verdict, reason, match[2], match[1] or "") if match else Finding(verdict, reason, "", action)


@dataclass(frozen=True)
class Context:
    """The machine, clone, volume and environments to examine; no environment selected means all."""

    machine: Machine = field(default_factory=Machine)
    environments: tuple[str, ...] = ()
    root: Path = paths.ROOT
    volume: Path = field(default_factory=paths.volume)
    offline: bool = False
    no_cache: bool = False  # images are about to be built without the cache of earlier builds

    def selected(self) -> dict[str, manifests.EnvironmentManifest]:
        """Return the manifests of the selected environments; without a selection, of those that this machine uses."""
        names = self.environments
        if not names:
            capabilities = [tuple(gpu.get("capability") or ()) for gpu in self.machine.gpus().get("devices", ())]
            needed = variants.is_needed(capabilities, self.machine.run("uname", "-m").out.strip())
            names = tuple(variants.select(name, needed=needed) for name in paths.image_names())
        return {name: manifests.environment(name) for name in names}


Probe = Callable[[Context], Finding]
Condition = tuple[Callable[[Context], object], str]  # a predicate, and the reason to skip if it is false

NOT_SELECTED = "not for the selected environments"
TORCH: Condition = (lambda context: any(environment.torch for environment in context.selected().values()), NOT_SELECTED)
GL: Condition = (lambda context: any(environment.needs_gl for environment in context.selected().values()), NOT_SELECTED)


@dataclass(frozen=True)
class Check:
    """One possible problem. The probe's docstring is its meaning, the probe's module its group."""

    id: str
    title: str
    severity: str  # the worst verdict it gives
    fix: str  # the usual fix
    probe: Probe
    meaning: str = ""
    group: str = ""
    requires: tuple[Condition, ...] = ()  # the check is skipped unless all of them hold
    before: tuple[str, ...] = ()  # tasks that run it before they start
    limit_s: float = 6.0
    named_limit_s: float = 0.0  # limit for named environments, which are examined more closely

    def run(self, context: Context) -> Finding:
        """Return the finding; a problem without a fix of its own gets the check's usual fix."""
        reason = next((reason for holds, reason in self.requires if not holds(context)), None)
        finding = self.probe(context) if reason is None else skip(reason)
        usual = self.fix if finding.verdict in (WARN, FAIL) else ""
        return replace(finding, fix=usual) if finding.fix is None else finding


REGISTERED: list[Check] = []


def check(id: str, title: str, severity: str, fix: str, **options: Any) -> Callable[[Probe], Probe]:
    """Register a probe as a check. options: fields of Check."""

    def register(probe: Probe) -> Probe:
        group = probe.__module__.rpartition(".")[2]
        REGISTERED.append(Check(id, title, severity, fix, probe, probe.__doc__ or "", group, **options))
        return probe

    return register


@dataclass(frozen=True)
class CheckResult:
    """A check and its finding. error: the failure or timeout of the check itself, else ""."""

    check: Check
    finding: Finding
    seconds: float
    error: str = ""
