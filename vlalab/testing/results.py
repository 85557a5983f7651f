"""Counts of tests, from the reports that pytest and the fault injection write, and the table at the end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Result:
    """The counts of one part. `reasons` counts the skipped tests by reason."""

    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.reasons = Counter(self.reasons)


def skipped(name: str, reason: str) -> Result:
    """Return the result of a part that was skipped."""
    return Result(name, skipped=1, reasons=Counter([reason]))


def read_junit(name: str, path: Path, exit_code: int) -> Result:
    """Return the counts of a pytest report. A missing or damaged one, or an unusual exit code, is a failure."""
    from xml.etree import ElementTree  # no other task needs it

    result = Result(name)
    try:
        cases = list(ElementTree.parse(path).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        cases, exit_code = [], exit_code or 3
    for case in cases:
        if case.find("failure") is not None or case.find("error") is not None:
            result.failed += 1
        elif (element := case.find("skipped")) is not None:
            result.skipped += 1
            result.reasons[element.get("message", "")] += 1
        else:
            result.passed += 1
    if exit_code not in (0, 1) and not result.failed:
        print(f"{name}: pytest ended with code {exit_code}")
        result.failed = 1
    return result


def append_records(path: Path, results: Sequence[Result]) -> None:
    """Append results to a file, one line of JSON each."""
    with path.open("a") as file:
        file.writelines(json.dumps(vars(result)) + "\n" for result in results)


def read_records(path: Path) -> list[Result]:
    """Return the results in a file that append_records wrote; none if there is no file."""
    return [Result(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def print_summary(results: Sequence[Result], advice: Sequence[str] = ()) -> int:
    """Print a row per result, the reasons of skips, advice and the totals. Return the exit code."""
    print(f"\n{'part':<16}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}")
    for one in results:
        print(f"{one.name:<16}{one.passed:>8}{one.failed:>8}{one.skipped:>9}{one.seconds:>9.0f}")
    for reason, count in sum((one.reasons for one in results), Counter()).items():
        print(f"skipped {count}: {reason}")
    for line in advice:
        print(line)
    passed, failed, left_out = (sum(getattr(one, key) for one in results) for key in ("passed", "failed", "skipped"))
    print(f"\n{passed} passed, {failed} failed, {left_out} skipped", flush=True)
    return 1 if failed or not passed else 0
