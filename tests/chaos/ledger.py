"""What was tried and what held: counted while the attack runs, printed at its end, handed to `./lab test`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

TOLD = 8  # failures of one kind that are told in full


@dataclass
class Row:
    """One line of the table: how often something was tried, and how often it held."""

    tried: int = 0
    held: int = 0


@dataclass
class Ledger:
    """The table of one run. `again` is the command that repeats it."""

    again: str
    rows: dict[str, Row] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    figures: list[str] = field(default_factory=list)

    def count(self, what: str, held: bool, story: str = "", times: int = 1) -> bool:
        """Counts a try (or `times` of them, all alike); one that did not hold is kept with its story."""
        row = self.rows.setdefault(what, Row())
        row.tried += times
        row.held += times if held else 0
        if not held and sum(told.startswith(f"{what}: ") for told in self.failures) < TOLD:
            self.failures.append(f"{what}: {story}")
            print(f"  NOT HELD {what}: {story[:2000]}", flush=True)
        return held

    def skip(self, what: str, reason: str) -> None:
        """Notes what was left out, and why."""
        self.skipped[what] = reason

    def figure(self, text: str) -> None:
        """Adds a line of measurements under the table."""
        self.figures.append(text)

    def show(self) -> None:
        """Prints the table, the measurements, what was left out and what did not hold."""
        width = max(map(len, self.rows), default=8)
        print(f"\n{'tried':<{width}} {'times':>8} {'held':>8}")
        for what, row in self.rows.items():
            print(f"{what:<{width}} {row.tried:>8} {row.held:>8}{'' if row.held == row.tried else '   <- NOT HELD'}")
        for line in [*self.figures, *(f"left out: {what}: {reason}" for what, reason in self.skipped.items())]:
            print(line)
        if self.failures:
            print(f"\nwhat did not hold (at most {TOLD} of a kind); again with: {self.again}")
            for story in self.failures:
                print(f"- {story}")

    def write(self, path: Path) -> None:
        """Writes the counts as `./lab test` sums them: a line of the table is one test."""
        failed = sum(row.held < row.tried for row in self.rows.values())
        reasons = {f"chaos, {what}: {reason}": 1 for what, reason in self.skipped.items()}
        counts = {"passed": len(self.rows) - failed, "failed": failed, "skipped": len(reasons), "reasons": reasons}
        path.write_text(json.dumps(counts))
