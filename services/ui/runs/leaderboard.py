"""Policies × suites: which run stands for a policy on a suite, and the mean over suites that all have one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Run = Mapping[str, Any]


@dataclass
class Line:
    """One policy under one protocol on one kind of assets; `cells` holds a suite's run."""

    policy: str
    checkpoint: str
    profile: str
    assets: str
    cells: dict[str, Run] = field(default_factory=dict)

    @property
    def mean(self) -> float | None:
        """The mean of its suites' rates, each weighing the same; None without any."""
        rates = [run["rate"] for run in self.cells.values()]
        return sum(rates) / len(rates) if rates else None


def lines(runs: Iterable[Run]) -> tuple[list[str], list[Line]]:
    """Returns the suites in the order of their names and a line per policy, those with most suites and the best first.

    Only complete runs count; of several of one kind that with most episodes, then the latest.
    """
    complete = [run for run in runs if run["state"] == "complete" and run["done"]]
    found: dict[tuple, Line] = {}
    for run in sorted(complete, key=lambda run: (run["done"], run["created"])):
        key = tuple(run[name] for name in ("policy", "checkpoint", "profile", "assets"))
        found.setdefault(key, Line(*key)).cells[run["suite"]] = run
    suites = sorted({run["suite"] for run in complete})
    return suites, sorted(found.values(), key=lambda line: (-len(line.cells), -(line.mean or 0.0), line.policy))
