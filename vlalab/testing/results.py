"""What came of tests: counts from the reports that pytest and the attack write, and the table of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vlalab.host.console import say


@dataclass
class Result:
    """What came of one part. `reasons` say why something was skipped, with how often.

    cpu_seconds: processor time of the processes that it started and waited for, or of its container; 0: not known.
    """

    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Result) -> Result:
        return Result(
            self.name,
            self.passed + other.passed,
            self.failed + other.failed,
            self.skipped + other.skipped,
            self.seconds + other.seconds,
            self.cpu_seconds + other.cpu_seconds,
            self.reasons + other.reasons,
        )


def skipped(name: str, reason: str) -> Result:
    """Returns the result of a part that was left out."""
    return Result(name, skipped=1, reasons=Counter([reason]))


def parse_junit(name: str, report: str) -> Result:
    """Returns the counts in a pytest report (XML); a missing or broken report counts as one failure."""
    from xml.etree import ElementTree  # what no other task need load

    try:
        root = ElementTree.fromstring(report)
    except ElementTree.ParseError:
        return Result(name, failed=1)
    result = Result(name)
    for case in root.iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            result.failed += 1
        elif "skipped" in kinds:
            result.skipped += 1
            result.reasons[case.find("skipped").get("message", "")] += 1  # type: ignore[union-attr]
        else:
            result.passed += 1
    return result


def with_exit_code(result: Result, code: int) -> Result:
    """Returns the counts, with one failure where pytest ended otherwise than a report of its own can say."""
    if code not in (0, 1) and result.failed == 0:
        say(f"pytest ended with code {code}")
        result.failed = 1
    return result


def read_counts(name: str, path: Path) -> Result:
    """Returns the counts that tests/chaos wrote; a file that is missing or damaged counts as one failure."""
    try:
        counts = json.loads(path.read_text())
        return Result(name, **{**counts, "reasons": Counter(counts["reasons"])})
    except (OSError, ValueError, KeyError, TypeError):
        return Result(name, failed=1)


def write_record(path: Path, results: Sequence[Result]) -> None:
    """Adds results to a file, a line of JSON each."""
    with path.open("a") as file:
        file.writelines(json.dumps(vars(result)) + "\n" for result in results)


def read_record(path: Path) -> list[Result]:
    """Returns the results that in_image recorded in a file; none when there is no file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [Result(**{**record, "reasons": Counter(record["reasons"])}) for record in map(json.loads, lines)]


def print_sum(results: Sequence[Result], advice: Sequence[str] = ()) -> int:
    """Prints a row per result, why something was skipped, advice, and the sum in one line. Returns the exit code."""
    total = sum(results, Result("all"))
    print(f"\n{'part':<16}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}{'CPU s':>9}")
    for result in results:
        counts = f"{result.passed:>8}{result.failed:>8}{result.skipped:>9}"
        print(f"{result.name:<16}{counts}{result.seconds:>9.0f}{result.cpu_seconds:>9.0f}")
    for reason, count in total.reasons.items():
        print(f"skipped {count}: {reason}")
    for line in advice:
        print(line)
    print(f"\n{total.passed} passed, {total.failed} failed, {total.skipped} skipped", flush=True)
    return 1 if total.failed or total.passed == 0 else 0
