"""Progress of a run: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from services.libero.evaluator.terminal import one_line, plain, say

PLAIN_EVERY_S = 10.0
BAR_WIDTH = 24


@dataclass(frozen=True)
class Totals:
    """Sums over the tasks, and the pace of this session."""

    planned: int
    done: int
    successes: int
    steps_per_s: float
    left_s: float | None
    policy_errors: int = 0

    @property
    def line(self) -> str:
        rate = f"{100 * self.successes / self.done:.1f} %" if self.done else "–"
        rate += f" ({self.policy_errors} policy errors)" if self.policy_errors else ""
        return (
            f"{self.done}/{self.planned} episodes, success {rate}, {self.steps_per_s:.0f} steps/s, "
            f"{show_seconds(self.left_s)} left"
        )


class Pace:
    """Turns counts into steps per second and time left, of this session only."""

    def __init__(self, counts: Mapping[int, Mapping[str, int]], now: float):
        self.start = now
        self.done_before = sum(row["done"] for row in counts.values())
        self.steps_before = sum(row["steps"] for row in counts.values())

    def totals(self, counts: Mapping[int, Mapping[str, int]], now: float) -> Totals:
        planned, done, successes, steps = (
            sum(row[key] for row in counts.values()) for key in ("planned", "done", "successes", "steps")
        )
        elapsed = max(now - self.start, 1e-9)
        fresh = done - self.done_before
        left = elapsed / fresh * (planned - done) if fresh else None
        pace = max(0, steps - self.steps_before) / elapsed
        return Totals(planned, done, successes, pace, left, sum(row.get("policy_errors", 0) for row in counts.values()))


def show_seconds(seconds: float | None) -> str:
    """Returns a duration as a person says it: "40 s", "3 min 05 s", "2 h 10 min"."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class PlainProgress:
    """One line now and then, for logs and pipes."""

    def __init__(self, names: Mapping[int, str], counts, out=sys.stdout):
        self.names, self.out = names, out
        self.pace = Pace(counts, time.monotonic())
        self.last_at, self.last_done = 0.0, -1

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        pass

    def say(self, line: str) -> None:
        say(line, self.out)

    def update(self, counts, workers: Mapping[str, str]) -> None:
        now = time.monotonic()
        totals = self.pace.totals(counts, now)
        finished = totals.done == totals.planned
        if totals.done == self.last_done or (now - self.last_at < PLAIN_EVERY_S and not finished):
            return
        self.last_at, self.last_done = now, totals.done
        self.say(totals.line)


class LiveProgress:
    """A table that stays in place: a bar per task, what each worker does, and the totals."""

    def __init__(self, names: Mapping[int, str], counts, console: Console | None = None):
        self.names = names
        self.console = console or Console()
        self.pace = Pace(counts, time.monotonic())
        self.live = Live(console=self.console, auto_refresh=False, transient=False)

    def __enter__(self):
        self.live.__enter__()
        return self

    def __exit__(self, *exc) -> None:
        self.live.__exit__(*exc)

    def say(self, line: str) -> None:
        self.console.print(plain(line), highlight=False, markup=False)

    def update(self, counts, workers: Mapping[str, str]) -> None:
        totals = self.pace.totals(counts, time.monotonic())
        self.live.update(self.table(counts, workers, totals), refresh=True)

    def table(self, counts, workers: Mapping[str, str], totals: Totals) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        table.add_column(width=3, justify="right", style="dim")
        table.add_column(max_width=52, no_wrap=True, overflow="ellipsis")
        table.add_column(width=BAR_WIDTH)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        for task in self.shown(counts):
            row = counts[task]
            rate = f"{100 * row['successes'] / row['done']:.0f} %" if row["done"] else ""
            table.add_row(str(task), self.names[task], bar(row), f"{row['done']}/{row['planned']}", rate)
        waiting = sorted({status for status in workers.values() if not status.startswith("task ")})
        grid = Table.grid()
        grid.add_row(table)
        for status in waiting:
            grid.add_row(Text(f"    {sum(s == status for s in workers.values())} × {one_line(status)}", style="dim"))
        grid.add_row(Text(f"    {totals.line}", style="bold"))
        return grid

    def shown(self, counts) -> list[int]:
        """Returns the tasks that fit on the screen: all, or those in work and those just done."""
        room = max(5, self.console.size.height - 8)
        tasks = list(counts)
        if len(tasks) <= room:
            return tasks
        active = [task for task in tasks if counts[task]["leased"]]
        started = [task for task in tasks if counts[task]["done"] and task not in active]
        return sorted((active + started[::-1])[:room] or tasks[:room])


def bar(row: Mapping[str, int]) -> Text:
    """Returns a bar of one task: successes green, failures red, the rest dim."""
    planned = max(row["planned"], 1)
    good = round(BAR_WIDTH * row["successes"] / planned)
    done = round(BAR_WIDTH * row["done"] / planned)
    parts = (good, "green"), (done - good, "red"), (BAR_WIDTH - done, "bright_black")
    return Text.assemble(*(("━" * length, style) for length, style in parts))


def make_progress(names: Mapping[int, str], counts):
    """Returns the display that fits where standard output goes."""
    return LiveProgress(names, counts) if sys.stdout.isatty() else PlainProgress(names, counts)
