"""Counts of tests, from the reports that pytest and the fault injection write, and the summary at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class PartResult:
    """The counts of one part. `reasons` counts the skipped tests by reason."""

    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)


def skipped(name: str, reason: str) -> PartResult:
    """Return the result of a part that was skipped."""
    return PartResult(name, skipped=1, reasons=Counter([reason]))


def read_junit(name: str, path: Path, exit_code: int) -> PartResult:
    """Return the counts of a pytest report. A missing or damaged one, or an unusual exit code, is a failure."""
    from xml.etree import ElementTree  # no other task needs it

    try:
        tests = list(ElementTree.parse(path).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        tests, exit_code = [], exit_code or 3
    skips = [element.get("message", "") for test in tests if (element := test.find("skipped")) is not None]
    failed = sum(test.find("failure") is not None or test.find("error") is not None for test in tests)
    if exit_code not in (0, 1) and not failed:
        print(f"{name}: pytest ended with code {exit_code}")
        return PartResult(name, len(tests) - len(skips), 1, len(skips), 0.0, Counter(skips))
    return PartResult(name, len(tests) - len(skips) - failed, failed, len(skips), 0.0, Counter(skips))


def print_summary(results: Sequence[PartResult], advice: Sequence[str] = ()) -> int:
    """Print a row per result, the reasons of skips, advice and the totals. Return the exit code."""
    print(f"\n{'part':<16}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}")
    reasons: Counter[str] = Counter()
    for result in results:
        counts = f"{result.passed:>8}{result.failed:>8}{result.skipped:>9}{result.seconds:>9.0f}"
        print(f"{result.name:<16}{counts}")
        reasons.update(result.reasons)
    for line in (*(f"skipped {count}: {reason}" for reason, count in reasons.items()), *advice):
        print(line)
    passed, failed, left_out = (
        sum(getattr(result, key) for result in results) for key in ("passed", "failed", "skipped")
    )
    print(f"\n{passed} passed, {failed} failed, {left_out} skipped", flush=True)
    return 1 if failed or not passed else 0
