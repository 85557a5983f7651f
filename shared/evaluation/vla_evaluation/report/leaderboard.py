"""Policies × suites over many runs: what may stand side by side, which runs count together, and what is left out.

Rates stand in one table only where all that is in its heading was the same. What a terminal, a file and the lab's pages
show is made of the one `Board`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vla_contract.protocol.errors import did_you_mean
from vla_evaluation.chunks import Chunking
from vla_evaluation.config import SHOWN_DIGITS, config_hash, differences, flatten, in_words, show_ranges
from vla_evaluation.report.stats import Rate
from vla_evaluation.store.runstore import RunStore

NOT_RECORDED = "not recorded"  # by a run that is older than the fact
PROFILES_OWN = "the profile's"
MEANT_TO_VARY = ("episodes",)  # between runs that count together
COLUMNS = (
    "table", "benchmark", "profile", "assets", "assets_digest", "max_steps", "chunks", "seed", "tasks", "versions",
    "policy", "checkpoint", "revision", "policy_differs_in", "privileged", "suite", "kind", "episodes", "successes",
    "rate", "low", "high", "policy_errors", "runs",
)  # fmt: skip

Episode = tuple[int, int]  # task, episode


@dataclass(frozen=True)
class Entry:
    """What is read of one run. `outcomes`: its finished episodes, each with whether it succeeded and whether the
    policy's own answer ended it. `why_not`: the reason why it cannot count, empty where it does.
    """

    name: str
    created: float
    identity: Mapping[str, Any]
    about: Mapping[str, Any]
    outcomes: Mapping[Episode, tuple[bool, bool]]
    why_not: str = ""

    @property
    def suite(self) -> str:
        return self.identity["suite"]

    @property
    def limit_is_the_profiles(self) -> bool:
        return self.identity["max_steps"] == self.about["profile"].get("max_steps")


@dataclass(frozen=True)
class Cell:
    """One policy on one suite. Each start counts once, however many of `runs` had it; `repeated` is how many came
    again. `kinds` holds the cells of the suite's kinds of task, where it has such.
    """

    rate: Rate
    policy_errors: int
    runs: tuple[str, ...]
    repeated: int
    kinds: Mapping[str, Cell] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON types; rates run from 0 to 1."""
        return {
            "successes": self.rate.successes,
            "done": self.rate.trials,
            "rate": self.rate.value,
            "interval": list(self.rate.interval),
            "policy_errors": self.policy_errors,
            "runs": list(self.runs),
            "repeated": self.repeated,
            **({"kinds": {kind: cell.to_json() for kind, cell in self.kinds.items()}} if self.kinds else {}),
        }


@dataclass(frozen=True)
class Line:
    """One policy of a table. `differs` names what it has else than another of the same name, as in "device cuda"."""

    policy: Mapping[str, Any]
    differs: str
    cells: Mapping[str, Cell]

    @property
    def mean(self) -> float:
        """The mean of its suites' rates, each weighing the same."""
        return sum(cell.rate.value for cell in self.cells.values()) / len(self.cells)

    @property
    def privileged(self) -> bool:
        """Whether the simulator told it what no robot knows."""
        return bool(self.policy.get("needs_privileged"))

    @property
    def checkpoint(self) -> tuple[str, str]:
        """Repository and revision, both empty where it has none."""
        told = self.policy.get("checkpoint") or {}
        return str(told.get("repo") or ""), str(told.get("revision") or "")

    @property
    def label(self) -> str:
        repo, revision = self.checkpoint
        of = f"{repo}@{revision[:SHOWN_DIGITS]}" if revision else repo
        parts = [str(self.policy["name"]), of, self.differs, "privileged state" if self.privileged else ""]
        return " · ".join(part for part in parts if part)


@dataclass(frozen=True)
class Table:
    """Lines whose figures may stand side by side; `facts` is what they have in common, as JSON types."""

    facts: Mapping[str, Any]
    suites: tuple[str, ...]
    lines: tuple[Line, ...]

    def mean(self, line: Line) -> float | None:
        """Returns a line's mean where it has every suite of several; None elsewhere."""
        return line.mean if len(self.suites) > 1 and len(line.cells) == len(self.suites) else None

    def kinds(self) -> dict[str, tuple[str, ...]]:
        """Returns the kinds of task of every suite that has several, in the suite's order."""
        cells = [(suite, line.cells[suite]) for suite in self.suites for line in self.lines if suite in line.cells]
        return {suite: tuple(cell.kinds) for suite, cell in cells if len(cell.kinds) > 1}

    @property
    def words(self) -> dict[str, str]:
        """Returns what the lines have in common, by name, as a person reads it: no two tables' are the same."""
        facts, assets = self.facts, self.facts["assets"]
        return {
            "profile": str(facts["profile"]),
            "assets": f"{assets['kind']} {str(assets['digest'])[:SHOWN_DIGITS]}",
            "step limits": str(facts["max_steps"]),
            "chunks": facts["chunks"],
            "seed": str(facts["seed"]),
            "tasks": facts["tasks"],
            "benchmark": str(facts["benchmark"]),
            "steps/s": str(facts["control_hz"]),
            "wait and pictures": _digest_of(facts["protocol"]),
            "versions": versions_in_words(facts["versions"]),
        }

    @property
    def title(self) -> str:
        """Returns the heading in one line."""
        return ", ".join(f"{name}: {value}" for name, value in self.words.items() if value)

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON types."""
        lines = [
            {
                "policy": line.policy["name"],
                "label": line.label,
                "checkpoint": line.checkpoint[0],
                "revision": line.checkpoint[1],
                "differs": line.differs,
                "privileged": line.privileged,
                "mean": self.mean(line),
                "cells": {suite: cell.to_json() for suite, cell in line.cells.items()},
            }
            for line in self.lines
        ]
        return {"facts": dict(self.facts), "words": self.words, "suites": list(self.suites), "lines": lines}


@dataclass(frozen=True)
class Board:
    """All tables, those with most figures first, and the runs that stand in none, each with the reason."""

    tables: tuple[Table, ...]
    left_out: tuple[tuple[str, str], ...]

    def rows(self) -> list[dict[str, Any]]:
        """Returns a row of `COLUMNS` per figure, those of a suite's kinds below it: what a spreadsheet takes."""
        return [
            row(number, table, line, suite, kind)
            for number, table in enumerate(self.tables, 1)
            for line in table.lines
            for suite, cell in line.cells.items()
            for kind in ("", *cell.kinds)
        ]

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON types, with the rows of its spreadsheet."""
        return {
            "tables": [table.to_json() for table in self.tables],
            "left_out": [{"run": name, "why": why} for name, why in self.left_out],
            "columns": list(COLUMNS),
            "rows": self.rows(),
        }


def row(number: int, table: Table, line: Line, suite: str, kind: str = "") -> dict[str, Any]:
    """Returns one figure of a table as a row of `COLUMNS`; of all kinds of task together where none is named."""
    facts, whole = table.facts, line.cells[suite]
    cell = whole.kinds[kind] if kind else whole
    low, high = cell.rate.interval
    return {
        "table": number,
        **{name: facts[name] for name in ("benchmark", "profile", "max_steps", "chunks", "seed", "tasks")},
        "assets": facts["assets"]["kind"],
        "assets_digest": facts["assets"]["digest"],
        "versions": versions_in_words(facts["versions"]),
        "policy": line.policy["name"],
        "checkpoint": line.checkpoint[0],
        "revision": line.checkpoint[1],
        "policy_differs_in": line.differs,
        "privileged": line.privileged,
        "suite": suite,
        "kind": kind,
        "episodes": cell.rate.trials,
        "successes": cell.rate.successes,
        "rate": round(cell.rate.value, 6),
        "low": round(low, 6),
        "high": round(high, 6),
        "policy_errors": cell.policy_errors,
        "runs": " ".join(cell.runs),
    }


def _digest_of(fact: object) -> str:
    return config_hash(fact)[:SHOWN_DIGITS] if isinstance(fact, Mapping) else str(fact)


def versions_in_words(versions: Mapping[str, str]) -> str:
    """Returns packages and versions in one line, by name."""
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))


# --- from runs to a board -----------------------------------------------------------------------------------


def read(name: str, store: RunStore) -> Entry:
    """Returns what a run's store says. StoreError where it cannot be read."""
    identity, about, outcomes, planned = store.meta("identity"), store.described(), store.outcomes(), len(store.plan())
    why = ""
    if len(outcomes) < planned:
        why = f"not complete, {len(outcomes)} of {planned} episodes are done"
    elif not planned:
        why = "it has no episodes"
    elif any(one["notes"].get("drift") for one in store.invocations()):
        why = "its configuration changed between invocations (--allow-drift)"
    entry = Entry(name, float(store.meta("created", 0.0)), identity, about, outcomes, why)
    common_facts(entry)  # what is damaged is found here, while it can be told of this run
    return entry


def board(entries: Iterable[Entry], unread: Mapping[str, str], suites: Sequence[str] = ()) -> Board:
    """Returns the board of these runs, of those suites alone if some are named. `unread` are those that could not be
    read, with the reason.

    Raises ValueError for a suite that no run has, with the nearest.
    """
    known = sorted(entries, key=lambda entry: (entry.created, entry.name))
    there = {entry.suite for entry in known}
    for suite in suites:
        if suite not in there:
            raise ValueError(f"no run is of suite {suite!r}{did_you_mean(suite, sorted(there))}")
    asked = [entry for entry in known if not suites or entry.suite in suites]
    left_out = [*unread.items(), *((entry.name, entry.why_not) for entry in asked if entry.why_not)]
    tables = []
    for facts, members in by_facts([entry for entry in asked if not entry.why_not]):
        table, beside = _table(facts, members)
        tables.append(table)
        left_out += beside
    tables.sort(key=lambda table: (-sum(len(line.cells) for line in table.lines), table.title))
    return Board(tuple(tables), tuple(left_out))


def by_facts(entries: Sequence[Entry]) -> list[tuple[dict[str, Any], list[Entry]]]:
    """Returns the runs whose figures may stand side by side, with what they have in common."""
    limits: dict[tuple[str, str], set[int]] = defaultdict(set)  # a profile's table may have changed between two runs
    for entry in entries:
        if entry.limit_is_the_profiles:
            limits[entry.suite, config_hash(common_facts(entry))].add(entry.identity["max_steps"])
    found: dict[str, tuple[dict[str, Any], list[Entry]]] = {}
    for entry in entries:
        facts = common_facts(entry)
        is_one = entry.limit_is_the_profiles and len(limits[entry.suite, config_hash(facts)]) == 1
        facts["max_steps"] = PROFILES_OWN if is_one else entry.identity["max_steps"]
        found.setdefault(config_hash(facts), (facts, []))[1].append(entry)
    return list(found.values())


def common_facts(entry: Entry) -> dict[str, Any]:
    """Returns what two runs must share, but for step limits, which every suite has its own of."""
    identity = entry.identity
    tasks = identity["tasks"]
    all_tasks = tasks == list(range(len(entry.about["tasks"])))
    return {
        "benchmark": identity.get("benchmark", NOT_RECORDED),
        "versions": identity["versions"],
        "profile": identity["profile"],
        "protocol": identity.get("protocol", NOT_RECORDED),
        "control_hz": identity.get("control_hz", NOT_RECORDED),
        "assets": {name: identity["assets"].get(name) for name in ("kind", "digest")},
        "seed": identity["seed"],
        "chunks": Chunking.of(identity).words,
        "tasks": "all" if all_tasks else f"{show_ranges(tasks)} of {entry.suite}",
    }


def _table(facts: dict[str, Any], entries: Sequence[Entry]) -> tuple[Table, list[tuple[str, str]]]:
    """Returns the table of runs that share these facts, and what stands beside it, with the reason."""
    policies: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        policies[json.dumps(entry.identity["policy"], sort_keys=True)].append(entry)
    told = differing([json.loads(text) for text in policies])
    lines, beside = [], []
    for (text, mine), differs in zip(policies.items(), told, strict=True):
        cells = {}
        for suite in sorted({entry.suite for entry in mine}):
            cells[suite], others = count_together([entry for entry in mine if entry.suite == suite])
            beside += others
        lines.append(Line(json.loads(text), differs, cells))
    suites = tuple(sorted({suite for line in lines for suite in line.cells}))
    lines.sort(key=lambda line: (-len(line.cells), -line.mean, line.label))
    return Table(facts, suites, tuple(lines)), beside


def differing(policies: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns for each policy what it has else than others of its name and checkpoint; empty for the only one."""
    flat = [flatten(policy) for policy in policies]
    alike = [json.dumps([policy["name"], policy.get("checkpoint")], sort_keys=True) for policy in policies]
    told = []
    for own, mark in zip(flat, alike, strict=True):
        others = [other for other, theirs in zip(flat, alike, strict=True) if theirs == mark]
        names = sorted({name for other in others for name in {*own, *other} if own.get(name) != other.get(name)})
        told.append(", ".join(f"{name} {in_words(own.get(name))}" for name in names))
    return told


def count_together(entries: Sequence[Entry]) -> tuple[Cell, list[tuple[str, str]]]:
    """Returns one policy's figure on one suite, and which runs stand beside it.

    Runs count together where their identities are the same but for which starts they ran; a start that several ran
    counts once, as the earliest has it, so that nobody runs again until it comes out well. Of runs that differ those
    with most starts stand, then the latest.
    """
    same: dict[str, list[Entry]] = defaultdict(list)
    for entry in sorted(entries, key=lambda one: (one.created, one.name)):
        same[config_hash(_pooled(entry))].append(entry)
    chosen = max(same.values(), key=lambda runs: (len(_starts(runs)), runs[-1].created, runs[-1].name))
    beside = [
        (entry.name, _why_beside(entry, chosen)) for runs in same.values() if runs is not chosen for entry in runs
    ]
    starts = _starts(chosen)
    repeated = sum(len(entry.outcomes) for entry in chosen) - len(starts)
    names, kinds = tuple(entry.name for entry in chosen), [task.get("kind", "") for task in chosen[-1].about["tasks"]]
    by_kind = {
        kind: _cell({at: outcome for at, outcome in starts.items() if kinds[at[0]] == kind}, names)
        for kind in dict.fromkeys(kinds[task] for task, _ in sorted(starts))
        if kind
    }
    return replace(_cell(starts, names), repeated=repeated, kinds=by_kind), beside


def _cell(starts: Mapping[Episode, tuple[bool, bool]], runs: tuple[str, ...]) -> Cell:
    rate = Rate(sum(success for success, _ in starts.values()), len(starts))
    return Cell(rate, sum(by_policy for _, by_policy in starts.values()), runs, 0)


def _pooled(entry: Entry) -> dict[str, Any]:
    return {name: value for name, value in entry.identity.items() if name not in MEANT_TO_VARY}


def _starts(entries: Sequence[Entry]) -> dict[Episode, tuple[bool, bool]]:
    found: dict[Episode, tuple[bool, bool]] = {}
    for entry in entries:
        found = {**entry.outcomes, **found}
    return found


def _why_beside(entry: Entry, chosen: Sequence[Entry]) -> str:
    names = [line.partition(":")[0] for line in differences(_pooled(entry), _pooled(chosen[-1]))]
    more = "has more episodes" if len(_starts(chosen)) > len(entry.outcomes) else "is later"
    return f"{chosen[-1].name} stands for this policy and suite, since it {more}; they differ in {', '.join(names)}"
