"""Results as a table, as JSON and as an exit status."""

from __future__ import annotations

import os
import platform
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

from vlalab.doctor.check import FAIL, NOT_SELECTED, PASS, SKIP, VERDICTS, WARN, CheckResult
from vlalab.engine import volumes

CODES = {PASS: 0, SKIP: 0, WARN: 1, FAIL: 2}
# Checks outside the group docker that concern containers only.
FOR_CONTAINERS = frozenset({"images", "network-registry", "nvidia-toolkit", "gpu-in-container"})
MARKS = {PASS: "ok", WARN: "WARN", FAIL: "FAIL"}
COLOURS = {PASS: "green", WARN: "yellow", FAIL: "bold red"}
MAX_WIDTH = 110


def runtime(results: Sequence[CheckResult]) -> str:
    """Return the choice of `--runtime auto`: docker if an engine answers and images are built, else local."""
    verdicts = {result.check.id: result.finding.verdict for result in results}
    return "docker" if verdicts.get("docker-engine") == PASS and verdicts.get("images") in (PASS, WARN) else "local"


def judge(results: Sequence[CheckResult]) -> list[CheckResult]:
    """Return the results with every failure that concerns containers only as a warning where the runtime is local."""
    is_local = runtime(results) == "local"
    return [
        replace(result, finding=replace(result.finding, verdict=WARN))
        if is_local and result.finding.verdict == FAIL and _is_for_containers(result)
        else result
        for result in results
    ]


def _is_for_containers(result: CheckResult) -> bool:
    # Local services run as the caller: another owner of the volume is a problem of containers only.
    if result.check.id == "volume-owner":
        return volumes.owner()[0] != os.geteuid()
    return result.check.group == "docker" or result.check.id in FOR_CONTAINERS


def exit_status(results: Sequence[CheckResult]) -> int:
    """Return 0 if all checks passed, 1 for warnings, 2 for failures."""
    return max((CODES[result.finding.verdict] for result in results), default=0)


def verdict(results: Sequence[CheckResult]) -> str:
    """Return the verdict on the runtime that would be used: "ready (local); Docker: 2 things missing"."""
    used = runtime(results)
    problems = [result for result in results if CODES[result.finding.verdict]]
    missing = [result for result in problems if used == "local" and _is_for_containers(result)]
    worst = exit_status([result for result in problems if result not in missing])
    text = {0: f"ready ({used})", 1: f"ready ({used}), with warnings", 2: f"not ready ({used})"}[worst]
    things = f"{len(missing)} thing{'s' * (len(missing) != 1)} missing"
    return f"{text}; Docker: {things}" if missing else text


def as_json(results: Sequence[CheckResult], environments: Sequence[str], seconds: float) -> dict[str, Any]:
    """Return the object that `--json` prints; docs/doctor.md describes every field."""
    return {
        "schema": 1, "host": platform.node(), "environments": list(environments),
        "exit_code": exit_status(results), "verdict": verdict(results), "seconds": round(seconds, 2),
        "checks": [
            {
                **{name: getattr(result.check, name) for name in ("id", "group", "title", "meaning", "severity")},
                "verdict": result.finding.verdict, "why": result.finding.reason, "fix": result.finding.fix,
                "hint": result.finding.hint, "facts": result.finding.details, "error": result.error,
                "seconds": round(result.seconds, 2),
            }
            for result in results
        ],
    }  # fmt: skip


def lines(results: Sequence[CheckResult], seconds: float, width: int = 0) -> list[str]:
    """Return the table: title, verdict and reason per line; after it the problems with their fixes, and the verdict."""
    width = width or min(shutil.get_terminal_size((100, 24)).columns, MAX_WIDTH)
    wrap = partial(textwrap.wrap, break_long_words=False, break_on_hyphens=False)
    title_width = max((len(result.check.title) for result in results), default=0)
    rows: list[str] = []
    for group, members in groupby(results, key=lambda result: result.check.group):
        body = []
        skipped: dict[str, list[str]] = {}  # reason → titles
        for result in members:
            if result.finding.verdict == SKIP:
                skipped.setdefault(result.finding.reason, []).append(result.check.title)
                continue
            row = f"  {MARKS[result.finding.verdict]:<5}{result.check.title:<{title_width}}  {result.finding.reason}"
            body.append(row if len(row) <= width else row[: width - 1] + "…")
        skipped.pop(NOT_SELECTED, None)
        for reason, titles in skipped.items():
            body += wrap(f"  -    not needed here, {reason}: {', '.join(titles)}", width, subsequent_indent=" " * 7)
        rows += [group, *body, ""] if body else []
    problems = [result for verdict in (FAIL, WARN) for result in results if result.finding.verdict == verdict]
    rows += ["What to do:"] * bool(problems)
    for number, result in enumerate(problems, 1):
        check, finding = result.check, result.finding
        rows += wrap(f"{number}. {check.title} ({check.id}): {finding.reason}", width, subsequent_indent="   ")
        hint = finding.hint + ":" * bool(finding.hint and finding.fix)
        rows += [f"   {row}" for row in wrap(hint, width - 3)]
        rows += [f"   $ {finding.fix}"] if finding.fix else []
    count = {mark: sum(result.finding.verdict == mark for result in results) for mark in VERDICTS}
    counts = f"{count[PASS]} passed, {count[WARN]} warned, {count[FAIL]} failed, {count[SKIP]} not needed here"
    summary = f"{verdict(results)} ({counts}, in {seconds:.1f} s)"
    return [*rows, *[""] * bool(problems), *textwrap.wrap(summary, width)]
