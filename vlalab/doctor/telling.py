"""How results are told: a table for people, JSON for programs, an exit code for both."""

from __future__ import annotations

import os
import platform
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from vlalab.doctor.running import NOT_ASKED
from vlalab.doctor.types import FAIL, PASS, SKIP, VERDICTS, WARN, Result
from vlalab.engine import volumes

SCHEMA = 1
CODES = {PASS: 0, SKIP: 0, WARN: 1, FAIL: 2}
# Checks outside the group docker that concern containers only.
FOR_CONTAINERS = frozenset({
    "images", "network-registry", "nvidia-toolkit", "nvidia-runtime", "nvidia-cdi", "gpu-in-container",
})  # fmt: skip
MARKS = {PASS: "ok", WARN: "WARN", FAIL: "FAIL"}
COLOURS = {PASS: "green", WARN: "yellow", FAIL: "bold red"}
WIDEST = 110


def runtime(results: Sequence[Result]) -> str:
    """Return what `--runtime auto` would select: docker where an engine answers and images are built, else local."""
    verdicts = {one.check.id: one.finding.verdict for one in results}
    return "docker" if verdicts.get("docker-engine") == PASS and verdicts.get("images") in (PASS, WARN) else "local"


def judge(results: Sequence[Result]) -> list[Result]:
    """Return the results with every failure that concerns containers only as a warning where the runtime is local."""
    return [
        replace(one, finding=replace(one.finding, verdict=WARN))
        if one.finding.verdict == FAIL and runtime(results) == "local" and _is_for_containers(one)
        else one
        for one in results
    ]


def _is_for_containers(one: Result) -> bool:
    # Local services run as the caller: another owner of the volume is a problem of containers only.
    if one.check.id == "volume-owner":
        return volumes.owner()[0] != os.geteuid()
    return one.check.group == "docker" or one.check.id in FOR_CONTAINERS


def code(results: Sequence[Result]) -> int:
    """Returns 0 where all is in order, 1 with warnings, 2 where something fails."""
    return max((CODES[one.finding.verdict] for one in results), default=0)


def verdict(results: Sequence[Result]) -> str:
    """Return the verdict on the runtime that would be used: "ready (local); Docker: 2 things missing"."""
    used = runtime(results)
    missing = [one for one in results if used == "local" and CODES[one.finding.verdict] and _is_for_containers(one)]
    worst = code([one for one in results if one not in missing])
    text = {0: f"ready ({used})", 1: f"ready ({used}), with warnings", 2: f"not ready ({used})"}[worst]
    things = f"{len(missing)} thing{'s' * (len(missing) != 1)} missing"
    return f"{text}; Docker: {things}" if missing else text


def as_json(results: Sequence[Result], environments: Sequence[str], seconds: float) -> dict[str, Any]:
    """Returns what `--json` prints; docs/doctor.md explains every field."""
    return {
        "schema": SCHEMA,
        "host": platform.node(),
        "environments": list(environments),
        "exit_code": code(results),
        "verdict": verdict(results),
        "seconds": round(seconds, 2),
        "checks": [_row(one) for one in results],
    }


def _row(one: Result) -> dict[str, Any]:
    check, finding = one.check, one.finding
    return {
        "id": check.id, "group": check.group, "title": check.title, "verdict": finding.verdict, "why": finding.why,
        "fix": finding.fix, "hint": finding.hint, "meaning": check.meaning, "severity": check.severity,
        "facts": dict(finding.facts), "error": one.error, "seconds": round(one.seconds, 2),
    }  # fmt: skip


def lines(results: Sequence[Result], seconds: float, width: int = 0) -> list[str]:
    """Returns the table: what, verdict, why in a line; below it what is to be mended, and how."""
    width = width or min(shutil.get_terminal_size((100, 24)).columns, WIDEST)
    title = max((len(one.check.title) for one in results), default=0)
    rows: list[str] = []
    for group, some in groupby(results, key=lambda one: one.check.group):
        found = _group(list(some), title, width)
        rows += ["", group, *found] if found else []
    return [*rows[1:], "", *_mending(results, width), *textwrap.wrap(_sum(results, seconds), width)]


def _group(results: Sequence[Result], title: int, width: int) -> list[str]:
    shown = [
        f"  {MARKS[one.finding.verdict]:<5}{one.check.title:<{title}}  {one.finding.why}"
        for one in results
        if one.finding.verdict != SKIP
    ]
    idle = [one for one in results if one.finding.verdict == SKIP]
    rows = [row if len(row) <= width else row[: width - 1] + "…" for row in shown]
    for why in dict.fromkeys(one.finding.why for one in idle if one.finding.why != NOT_ASKED):
        titles = ", ".join(one.check.title for one in idle if one.finding.why == why)
        text = f"not needed here, {why}: {titles}"
        rows += textwrap.wrap(text, width, initial_indent="  -    ", subsequent_indent="       ")
    return rows


def _mending(results: Sequence[Result], width: int) -> list[str]:
    bad = sorted(
        (one for one in results if one.finding.verdict in (WARN, FAIL)),
        key=lambda one: -VERDICTS.index(one.finding.verdict),
    )
    rows: list[str] = []
    for number, one in enumerate(bad, 1):
        why = f"{number}. {one.check.title} ({one.check.id}): {one.finding.why}"
        rows += textwrap.wrap(why, width, subsequent_indent="   ", break_long_words=False, break_on_hyphens=False)
        if one.finding.hint:
            rows += textwrap.wrap(
                one.finding.hint + ":" * bool(one.finding.fix),
                width,
                initial_indent="   ",
                subsequent_indent="   ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        rows += [f"   $ {one.finding.fix}"] if one.finding.fix else []
    return ["What to do:", *rows, ""] if rows else []


def _sum(results: Sequence[Result], seconds: float) -> str:
    count = {mark: sum(one.finding.verdict == mark for one in results) for mark in VERDICTS}
    parts = [
        f"{count[PASS]} passed",
        f"{count[WARN]} warned",
        f"{count[FAIL]} failed",
        f"{count[SKIP]} not needed here",
    ]
    return f"{verdict(results)} ({', '.join(parts)}, in {seconds:.1f} s)"
