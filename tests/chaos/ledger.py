"""What was tried and what held: counted while the attack runs, printed at its end, handed to `./lab test`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

MAX_REPORTED = 8  # failures of one kind that are told in full


@dataclass
class Row:
    """One line of the table: how often something was tried, and how often it held."""

    tried: int = 0
    passed: int = 0


@dataclass
class Ledger:
    """The table of one run. `repeat_command` is the command that repeats it."""

    repeat_command: str
    rows: dict[str, Row] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    figures: list[str] = field(default_factory=list)

    def count(self, row_name: str, passed: bool, story: str = "", times: int = 1) -> bool:
        """Count a try (or `times` of them, all alike); one that did not hold is kept with its story."""
        row = self.rows.setdefault(row_name, Row())
        row.tried += times
        row.passed += times if passed else 0
        if not passed and sum(reported.startswith(f"{row_name}: ") for reported in self.failures) < MAX_REPORTED:
            self.failures.append(f"{row_name}: {story}")
            print(f"  NOT HELD {row_name}: {story[:2000]}", flush=True)
        return passed

    def skip(self, row_name: str, reason: str) -> None:
        """Note what was left out, and why."""
        self.skipped[row_name] = reason

    def figure(self, text: str) -> None:
        """Add a line of measurements under the table."""
        self.figures.append(text)

    def show(self) -> None:
        """Print the table, the measurements, what was left out and what did not hold."""
        width = max(map(len, self.rows), default=8)
        print(f"\n{'tried':<{width}} {'times':>8} {'held':>8}")
        for row_name, row in self.rows.items():
            mark = "" if row.passed == row.tried else "   <- NOT HELD"
            print(f"{row_name:<{width}} {row.tried:>8} {row.passed:>8}{mark}")
        for line in [*self.figures, *(f"left out: {row_name}: {reason}" for row_name, reason in self.skipped.items())]:
            print(line)
        if self.failures:
            print(f"\nwhat did not hold (at most {MAX_REPORTED} of a kind); again with: {self.repeat_command}")
            for story in self.failures:
                print(f"- {story}")

    def write(self, path: Path) -> None:
        """Write the counts as `./lab test` sums them: a line of the table is one test."""
        failed = sum(row.passed < row.tried for row in self.rows.values())
        reasons = {f"chaos, {row_name}: {reason}": 1 for row_name, reason in self.skipped.items()}
        counts = {"passed": len(self.rows) - failed, "failed": failed, "skipped": len(reasons), "reasons": reasons}
        path.write_text(json.dumps(counts))
