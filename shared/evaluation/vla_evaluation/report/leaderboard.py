"""Policies × suites over many runs: comparable rates, runs that are pooled, and runs that are left out.

Rates share a table only if all settings in its heading are equal. The terminal, files and the lab's pages all display
the same `Board`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vla_contract.protocol.errors import did_you_mean
from vla_evaluation.chunks import Chunking
from vla_evaluation.config import DIGEST_CHARS, config_hash, differences, flatten, in_words, show_ranges
from vla_evaluation.report.stats import Rate
from vla_evaluation.store.runstore import RunStore

NOT_RECORDED = "not recorded"  # by an older run
PROFILE_LIMIT = "the profile's"
COLUMNS = (
    "table", "benchmark", "profile", "assets", "assets_digest", "max_steps", "chunks", "seed", "tasks", "versions",
    "policy", "checkpoint", "revision", "policy_differs_in", "privileged", "suite", "kind", "episodes", "successes",
    "rate", "low", "high", "policy_errors", "runs",
)  # fmt: skip

Outcomes = Mapping[tuple[int, int], tuple[bool, bool]]  # (task, episode) → success, ended by the policy's own answer
LeftOut = list[tuple[str, str]]  # run, reason


@dataclass(frozen=True)
class LeaderboardEntry:
    """One run as the leaderboard reads it. exclusion_reason: empty if the run counts."""

    name: str
    created: float
    identity: Mapping[str, Any]
    description: Mapping[str, Any]
    outcomes: Outcomes
    exclusion_reason: str = ""

    @property
    def suite(self) -> str:
        return self.identity["suite"]

    @property
    def has_profile_limit(self) -> bool:
        return self.identity["max_steps"] == self.description["profile"].get("max_steps")

    @property
    def comparable_identity(self) -> dict[str, Any]:
        """The identity without its episodes: runs that share it are pooled."""
        return {name: value for name, value in self.identity.items() if name != "episodes"}

    @property
    def shared_settings(self) -> dict[str, Any]:
        """The settings that comparable runs share, without the step limit, which depends on the suite."""
        identity, tasks = self.identity, self.identity["tasks"]
        all_tasks = tasks == list(range(len(self.description["tasks"])))
        return {
            "benchmark": identity.get("benchmark", NOT_RECORDED),
            "versions": identity["versions"],
            "profile": identity["profile"],
            "protocol": identity.get("protocol", NOT_RECORDED),
            "control_hz": identity.get("control_hz", NOT_RECORDED),
            "assets": {name: identity["assets"].get(name) for name in ("kind", "digest")},
            "seed": identity["seed"],
            "chunks": Chunking.of(identity).description,
            "tasks": "all" if all_tasks else f"{show_ranges(tasks)} of {self.suite}",
        }


@dataclass(frozen=True)
class Cell:
    """One policy on one suite. Each start counts once; `repeated` counts its repetitions in `runs`.

    `kinds` has the cells of the suite's kinds of task, where it has kinds.
    """

    rate: Rate
    policy_errors: int
    runs: tuple[str, ...]
    repeated: int = 0
    kinds: Mapping[str, Cell] = field(default_factory=dict)

    @classmethod
    def of(cls, outcomes: Iterable[tuple[bool, bool]], runs: tuple[str, ...], **more: Any) -> Cell:
        successes, by_policy = zip(*outcomes, strict=True)
        return cls(Rate(sum(successes), len(successes)), sum(by_policy), runs, **more)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON types; rates run from 0 to 1."""
        return {
            **self.rate.to_json(),
            "policy_errors": self.policy_errors,
            "runs": list(self.runs),
            "repeated": self.repeated,
            **({"kinds": {kind: cell.to_json() for kind, cell in self.kinds.items()}} if self.kinds else {}),
        }


@dataclass(frozen=True)
class LeaderboardRow:
    """One policy of a table. `differs` distinguishes it from another of the same name, for example "device cuda"."""

    policy: Mapping[str, Any]
    differs: str
    cells: Mapping[str, Cell]

    @property
    def mean(self) -> float:
        """The unweighted mean of its suites' rates."""
        return sum(cell.rate.value for cell in self.cells.values()) / len(self.cells)

    @property
    def columns(self) -> dict[str, Any]:
        """Name, checkpoint (repository and revision, empty if it has none) and use of privileged state."""
        checkpoint = self.policy.get("checkpoint") or {}
        return {
            "policy": self.policy["name"],
            "checkpoint": str(checkpoint.get("repo") or ""),
            "revision": str(checkpoint.get("revision") or ""),
            "privileged": bool(self.policy.get("needs_privileged")),
        }

    @property
    def label(self) -> str:
        columns = self.columns
        revision = f"@{columns['revision'][:DIGEST_CHARS]}" if columns["revision"] else ""
        privileged = "privileged state" if columns["privileged"] else ""
        parts = [str(columns["policy"]), f"{columns['checkpoint']}{revision}", self.differs, privileged]
        return " · ".join(part for part in parts if part)


@dataclass(frozen=True)
class Table:
    """Lines with comparable figures; `settings` are equal for all of them, as JSON types."""

    settings: Mapping[str, Any]
    suites: tuple[str, ...]
    lines: tuple[LeaderboardRow, ...]

    def mean(self, line: LeaderboardRow) -> float | None:
        """Return a line's mean if it has every suite of several, else None."""
        return line.mean if len(self.suites) > 1 and len(line.cells) == len(self.suites) else None

    def kinds(self) -> dict[str, tuple[str, ...]]:
        """Return the kinds of task of every suite that has several, in the suite's order."""
        cells = [(suite, line.cells[suite]) for suite in self.suites for line in self.lines if suite in line.cells]
        return {suite: tuple(cell.kinds) for suite, cell in cells if len(cell.kinds) > 1}

    @property
    def words(self) -> dict[str, str]:
        """The settings by name as text; no two tables have the same."""
        settings, assets, protocol = self.settings, self.settings["assets"], self.settings["protocol"]
        return {
            "profile": str(settings["profile"]),
            "assets": f"{assets['kind']} {str(assets['digest'])[:DIGEST_CHARS]}",
            "step limits": str(settings["max_steps"]),
            "chunks": settings["chunks"],
            "seed": str(settings["seed"]),
            "tasks": settings["tasks"],
            "benchmark": str(settings["benchmark"]),
            "steps/s": str(settings["control_hz"]),
            "wait and images": config_hash(protocol)[:DIGEST_CHARS] if isinstance(protocol, Mapping) else protocol,
            "versions": ", ".join(f"{name} {version}" for name, version in sorted(settings["versions"].items())),
        }

    @property
    def title(self) -> str:
        """The heading in one line."""
        return ", ".join(f"{name}: {value}" for name, value in self.words.items() if value)

    def rows(self, number: int) -> list[dict[str, Any]]:
        """Return a row of `COLUMNS` per figure, those of a suite's kinds below it."""
        names = ("benchmark", "profile", "max_steps", "chunks", "seed", "tasks")
        shared = {"table": number, **{name: self.settings[name] for name in names}, "versions": self.words["versions"]}
        shared |= {"assets": self.settings["assets"]["kind"], "assets_digest": self.settings["assets"]["digest"]}
        return [
            {
                **shared, **line.columns, "policy_differs_in": line.differs, "suite": suite, "kind": kind,
                "episodes": cell.rate.trials, "successes": cell.rate.successes, "rate": round(cell.rate.value, 6),
                "low": round(cell.rate.interval[0], 6), "high": round(cell.rate.interval[1], 6),
                "policy_errors": cell.policy_errors, "runs": " ".join(cell.runs),
            }
            for line in self.lines
            for suite, suite_cell in line.cells.items()
            for kind, cell in (("", suite_cell), *suite_cell.kinds.items())
        ]  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON types."""
        lines = [
            {
                **line.columns, "label": line.label, "differs": line.differs, "mean": self.mean(line),
                "cells": {suite: cell.to_json() for suite, cell in line.cells.items()},
            }
            for line in self.lines
        ]  # fmt: skip
        return {"facts": dict(self.settings), "words": self.words, "suites": list(self.suites), "lines": lines}


@dataclass(frozen=True)
class Board:
    """All tables, those with most figures first, and the excluded runs with their reasons."""

    tables: tuple[Table, ...]
    left_out: tuple[tuple[str, str], ...]

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of a spreadsheet."""
        return [row for number, table in enumerate(self.tables, 1) for row in table.rows(number)]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON types, with the rows of its spreadsheet."""
        return {
            "tables": [table.to_json() for table in self.tables],
            "left_out": [{"run": name, "why": reason} for name, reason in self.left_out],
            "columns": list(COLUMNS),
            "rows": self.rows(),
        }


# --- from runs to a board -----------------------------------------------------------------------------------


def read(name: str, store: RunStore) -> LeaderboardEntry:
    """Return a run's entry. StoreError if it cannot be read."""
    outcomes, planned, reason = store.outcomes(), len(store.plan()), ""
    if len(outcomes) < planned:
        reason = f"not complete: {len(outcomes)} of {planned} episodes are done"
    elif not planned:
        reason = "it has no episodes"
    elif any(invocation["notes"].get("drift") for invocation in store.invocations()):
        reason = "its configuration changed between invocations (--allow-drift)"
    created = float(store.meta("created", 0.0))
    entry = LeaderboardEntry(name, created, store.meta("identity"), store.described(), outcomes, reason)
    _ = entry.shared_settings  # here, so damage is reported with this run's name
    return entry


def board(entries: Iterable[LeaderboardEntry], unread: Mapping[str, str], suites: Sequence[str] = ()) -> Board:
    """Return the board of these runs, of those suites alone if some are named. `unread`: runs that could not be read,
    with the reason.

    Raises ValueError, with the nearest name, for a suite without runs.
    """
    entries = sorted(entries, key=lambda entry: (entry.created, entry.name))
    available = {entry.suite for entry in entries}
    for suite in suites:
        if suite not in available:
            raise ValueError(f"no run of suite {suite!r} found{did_you_mean(suite, sorted(available))}")
    entries = [entry for entry in entries if not suites or entry.suite in suites]
    left_out = [*unread.items(), *((entry.name, entry.exclusion_reason) for entry in entries if entry.exclusion_reason)]
    entries = [entry for entry in entries if not entry.exclusion_reason]
    limits: dict[tuple[str, str], set[int]] = defaultdict(set)  # a profile's table may have changed between two runs
    for entry in entries:
        if entry.has_profile_limit:
            limits[entry.suite, config_hash(entry.shared_settings)].add(entry.identity["max_steps"])
    groups: dict[str, tuple[dict[str, Any], list[LeaderboardEntry]]] = {}
    for entry in entries:
        settings = entry.shared_settings
        is_profiles = entry.has_profile_limit and len(limits[entry.suite, config_hash(settings)]) == 1
        settings["max_steps"] = PROFILE_LIMIT if is_profiles else entry.identity["max_steps"]
        groups.setdefault(config_hash(settings), (settings, []))[1].append(entry)
    tables = []
    for settings, members in groups.values():
        table, excluded = make_table(settings, members)
        tables.append(table)
        left_out += excluded
    tables.sort(key=lambda table: (-sum(len(line.cells) for line in table.lines), table.title))
    return Board(tuple(tables), tuple(left_out))


def make_table(settings: dict[str, Any], entries: Sequence[LeaderboardEntry]) -> tuple[Table, LeftOut]:
    """Return the table of runs that share these settings, and the excluded runs with their reasons."""
    by_policy: dict[str, list[LeaderboardEntry]] = defaultdict(list)
    for entry in entries:
        by_policy[json.dumps(entry.identity["policy"], sort_keys=True)].append(entry)
    policies = [json.loads(text) for text in by_policy]
    lines, left_out = [], []
    for policy, policy_entries in zip(policies, by_policy.values(), strict=True):
        cells = {}
        for suite in sorted({entry.suite for entry in policy_entries}):
            cells[suite], excluded = pool_runs([entry for entry in policy_entries if entry.suite == suite])
            left_out += excluded
        lines.append(LeaderboardRow(policy, describe_differences(policy, policies), cells))
    suites = tuple(sorted({suite for line in lines for suite in line.cells}))
    lines.sort(key=lambda line: (-len(line.cells), -line.mean, line.label))
    return Table(settings, suites, tuple(lines)), left_out


def describe_differences(policy: Mapping[str, Any], policies: Sequence[Mapping[str, Any]]) -> str:
    """Return a policy's differences from others of its name and checkpoint; empty if there are none."""
    key, flat = (policy["name"], policy.get("checkpoint")), flatten(policy)
    peers = [flatten(other) for other in policies if (other["name"], other.get("checkpoint")) == key]
    names = sorted({name for peer in peers for name in {*flat, *peer} if flat.get(name) != peer.get(name)})
    return ", ".join(f"{name} {in_words(flat.get(name))}" for name in names)


def pool_runs(entries: Sequence[LeaderboardEntry]) -> tuple[Cell, LeftOut]:
    """Return one policy's figure on one suite, and the excluded runs with their reasons.

    Runs are pooled if their identities differ only in the starts. A start in several runs counts once, with its
    earliest outcome, so repeating a run until it succeeds has no effect. Of runs that differ, those with the most
    starts count, then the latest.
    """
    same: dict[str, list[LeaderboardEntry]] = defaultdict(list)
    for entry in sorted(entries, key=lambda run: (run.created, run.name)):
        same[config_hash(entry.comparable_identity)].append(entry)
    selected = max(same.values(), key=lambda runs: (len(merged(runs)), runs[-1].created, runs[-1].name))
    starts, latest = merged(selected), selected[-1]
    left_out = []
    for entry in (entry for runs in same.values() if runs is not selected for entry in runs):
        names = [line.partition(":")[0] for line in differences(entry.comparable_identity, latest.comparable_identity)]
        more = "has more episodes" if len(starts) > len(entry.outcomes) else "is later"
        reason = f"{latest.name} counts for this policy and suite, since it {more}; they differ in {', '.join(names)}"
        left_out.append((entry.name, reason))
    names, tasks = tuple(entry.name for entry in selected), latest.description["tasks"]
    by_kind: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for (task, _), outcome in sorted(starts.items()):
        if kind := tasks[task].get("kind"):
            by_kind[kind].append(outcome)
    repeated = sum(len(entry.outcomes) for entry in selected) - len(starts)
    kinds = {kind: Cell.of(outcomes, names) for kind, outcomes in by_kind.items()}
    return Cell.of(starts.values(), names, repeated=repeated, kinds=kinds), left_out


def merged(entries: Sequence[LeaderboardEntry]) -> Outcomes:
    """Return the outcome of every start, the earliest of repeated ones."""
    outcomes: dict[tuple[int, int], tuple[bool, bool]] = {}
    for entry in entries:
        outcomes = {**entry.outcomes, **outcomes}
    return outcomes
