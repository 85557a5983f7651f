"""Policies × suites over many runs: comparable rates, runs that are pooled, and runs that are left out.

Rates share a table only if all settings in its heading are equal. A board is made of JSON types; the terminal, files
and the lab's pages all display the same one.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
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
Json = dict[str, Any]
LeftOut = list[dict[str, str]]  # excluded runs: "run", "why"


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
    def comparable_identity(self) -> Json:
        """The identity without its episodes: runs that share it are pooled."""
        return {name: value for name, value in self.identity.items() if name != "episodes"}

    @property
    def shared_settings(self) -> Json:
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


def read(name: str, store: RunStore) -> LeaderboardEntry:
    """Return a run's entry. StoreError if it cannot be read."""
    outcomes, planned, reason = store.outcomes(), len(store.plan()), ""
    if len(outcomes) < planned:
        reason = f"not complete: {len(outcomes)} of {planned} episodes are done"
    elif not planned:
        reason = "it has no episodes"
    elif store.meta("identity").get("ablation"):
        reason = "the policy's inputs were ablated"
    elif store.meta("identity").get("instructions"):
        reason = "the policy got other instructions than the suite's"
    elif any(invocation["notes"].get("drift") for invocation in store.invocations()):
        reason = "its configuration changed between invocations (--allow-drift)"
    created = float(store.meta("created", 0.0))
    entry = LeaderboardEntry(name, created, store.meta("identity"), store.described(), outcomes, reason)
    _ = entry.shared_settings  # here, so damage is reported with this run's name
    return entry


def board(entries: Iterable[LeaderboardEntry], unread: Mapping[str, str], suites: Sequence[str] = ()) -> Json:
    """Return the board of these runs, of those suites alone if some are named. `unread`: runs that could not be read,
    with the reason.

    "tables", those with most figures first; "left_out", the excluded runs; "columns" and "rows" of a spreadsheet.
    Raises ValueError, with the nearest name, for a suite without runs.
    """
    entries = sorted(entries, key=lambda entry: (entry.created, entry.name))
    available = {entry.suite for entry in entries}
    for suite in suites:
        if suite not in available:
            raise ValueError(f"no run of suite {suite!r} found{did_you_mean(suite, sorted(available))}")
    entries = [entry for entry in entries if not suites or entry.suite in suites]
    excluded = {**unread, **{entry.name: entry.exclusion_reason for entry in entries if entry.exclusion_reason}}
    left_out = [{"run": name, "why": reason} for name, reason in excluded.items()]
    entries = [entry for entry in entries if not entry.exclusion_reason]
    limits: dict[tuple[str, str], set[int]] = defaultdict(set)  # a profile's table may have changed between two runs
    for entry in entries:
        if entry.has_profile_limit:
            limits[entry.suite, config_hash(entry.shared_settings)].add(entry.identity["max_steps"])
    groups: dict[str, tuple[Json, list[LeaderboardEntry]]] = {}
    for entry in entries:
        settings = entry.shared_settings
        is_profiles = entry.has_profile_limit and len(limits[entry.suite, config_hash(settings)]) == 1
        settings["max_steps"] = PROFILE_LIMIT if is_profiles else entry.identity["max_steps"]
        groups.setdefault(config_hash(settings), (settings, []))[1].append(entry)
    tables = [make_table(settings, members, left_out) for settings, members in groups.values()]
    tables.sort(key=lambda table: (-sum(len(line["cells"]) for line in table["lines"]), title(table)))
    rows = [row for number, table in enumerate(tables, 1) for row in list_figures(number, table)]
    return {"tables": tables, "left_out": left_out, "columns": list(COLUMNS), "rows": rows}


def title(table: Json) -> str:
    """Return a table's heading in one line."""
    return ", ".join(f"{name}: {value}" for name, value in table["words"].items() if value)


def kinds(table: Json) -> dict[str, list[str]]:
    """Return the kinds of task of every suite that has several, in the suite's order."""
    by_suite: dict[str, list[str]] = {}
    for line in table["lines"]:
        for suite, cell in line["cells"].items():
            if len(cell.get("kinds", ())) > 1:
                by_suite[suite] = list(cell["kinds"])
    return by_suite


def make_table(settings: Json, entries: Sequence[LeaderboardEntry], left_out: LeftOut) -> Json:
    """Return the table of runs that share these settings; add the excluded runs to `left_out`.

    "facts", the settings, and "words", the same as text, different for any two tables; "suites"; "lines", one per
    policy. A line's "differs" distinguishes it from another of the same name, for example "device cuda"; its "mean" is
    the unweighted mean of its suites' rates, None unless it has every suite of several.
    """
    by_policy: dict[str, list[LeaderboardEntry]] = defaultdict(list)
    for entry in entries:
        by_policy[json.dumps(entry.identity["policy"], sort_keys=True)].append(entry)
    policies = [json.loads(text) for text in by_policy]
    lines = []
    for policy, policy_entries in zip(policies, by_policy.values(), strict=True):
        cells = {}
        for suite in sorted({entry.suite for entry in policy_entries}):
            cells[suite] = pool_runs([entry for entry in policy_entries if entry.suite == suite], left_out)
        checkpoint = policy.get("checkpoint") or {}
        repo, revision = str(checkpoint.get("repo") or ""), str(checkpoint.get("revision") or "")
        privileged, differs = bool(policy.get("needs_privileged")), describe_differences(policy, policies)
        short = f"{repo}@{revision[:DIGEST_CHARS]}" if revision else repo
        label = (str(policy["name"]), short, differs, "privileged state" if privileged else "")
        lines.append({
            "policy": policy["name"], "checkpoint": repo, "revision": revision, "privileged": privileged,
            "label": " · ".join(filter(None, label)), "differs": differs,
            "mean": fmean(cell["rate"] for cell in cells.values()), "cells": cells,
        })  # fmt: skip
    suites = sorted({suite for line in lines for suite in line["cells"]})
    lines.sort(key=lambda line: (-len(line["cells"]), -line["mean"], line["label"]))
    for line in lines:
        if len(suites) == 1 or len(line["cells"]) < len(suites):
            line["mean"] = None
    assets, protocol = settings["assets"], settings["protocol"]
    words = {
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
    return {"facts": settings, "words": words, "suites": suites, "lines": lines}


def list_figures(number: int, table: Json) -> list[Json]:
    """Return a row of `COLUMNS` per figure of a table, those of a suite's kinds below it."""
    settings, rows = table["facts"], []
    shared = {name: settings[name] for name in ("benchmark", "profile", "max_steps", "chunks", "seed", "tasks")}
    shared |= {"assets": settings["assets"]["kind"], "assets_digest": settings["assets"]["digest"]}
    shared |= {"table": number, "versions": table["words"]["versions"]}
    for line in table["lines"]:
        names = ("policy", "checkpoint", "revision", "privileged")
        policy = {**{name: line[name] for name in names}, "policy_differs_in": line["differs"]}
        for suite, suite_cell in line["cells"].items():
            for kind, cell in (("", suite_cell), *suite_cell.get("kinds", {}).items()):
                low, high = (round(end, 6) for end in cell["interval"])
                figure = {"rate": round(cell["rate"], 6), "low": low, "high": high, "runs": " ".join(cell["runs"])}
                counts = {"episodes": cell["done"], "successes": cell["successes"]}
                figure |= {"suite": suite, "kind": kind, "policy_errors": cell["policy_errors"], **counts}
                rows.append({**shared, **policy, **figure})
    return rows


def describe_differences(policy: Mapping[str, Any], policies: Sequence[Mapping[str, Any]]) -> str:
    """Return a policy's differences from others of its name and checkpoint; empty if there are none."""
    key, flat = (policy["name"], policy.get("checkpoint")), flatten(policy)
    peers = [flatten(other) for other in policies if (other["name"], other.get("checkpoint")) == key]
    names = sorted({name for peer in peers for name in {*flat, *peer} if flat.get(name) != peer.get(name)})
    return ", ".join(f"{name} {in_words(flat.get(name))}" for name in names)


def pool_runs(entries: Sequence[LeaderboardEntry], left_out: LeftOut) -> Json:
    """Return one policy's figure on one suite; add the excluded runs to `left_out`.

    Runs are pooled if their identities differ only in the starts. A start in several runs counts once, with its
    earliest outcome, so repeating a run until it succeeds has no effect; "repeated" counts the others. Of runs that
    differ, those with the most starts count, then the latest. "kinds": the figures of the suite's kinds of task.
    """
    same: dict[str, list[LeaderboardEntry]] = defaultdict(list)
    for entry in sorted(entries, key=lambda run: (run.created, run.name)):
        same[config_hash(entry.comparable_identity)].append(entry)
    selected = max(same.values(), key=lambda runs: (len(merged(runs)), runs[-1].created, runs[-1].name))
    starts, latest = merged(selected), selected[-1]
    for entry in (entry for runs in same.values() if runs is not selected for entry in runs):
        names = [line.partition(":")[0] for line in differences(entry.comparable_identity, latest.comparable_identity)]
        more = "has more episodes" if len(starts) > len(entry.outcomes) else "is later"
        reason = f"{latest.name} counts for this policy and suite, since it {more}; they differ in {', '.join(names)}"
        left_out.append({"run": entry.name, "why": reason})
    tasks, by_kind = latest.description["tasks"], defaultdict(list)
    for (task, _), outcome in sorted(starts.items()):
        if kind := tasks[task].get("kind"):
            by_kind[kind].append(outcome)

    def figure(outcomes: Iterable[tuple[bool, bool]], repeated: int = 0) -> Json:
        successes, by_policy = zip(*outcomes, strict=True)
        names = [entry.name for entry in selected]
        counts = {"policy_errors": sum(by_policy), "runs": names, "repeated": repeated}
        return {**Rate(sum(successes), len(successes)).to_json(), **counts}

    cell = figure(starts.values(), sum(len(entry.outcomes) for entry in selected) - len(starts))
    return {**cell, "kinds": {kind: figure(outcomes) for kind, outcomes in by_kind.items()}} if by_kind else cell


def merged(entries: Sequence[LeaderboardEntry]) -> Outcomes:
    """Return the outcome of every start, the earliest of repeated ones."""
    outcomes: dict[tuple[int, int], tuple[bool, bool]] = {}
    for entry in entries:
        outcomes = {**entry.outcomes, **outcomes}
    return outcomes
