"""Progress of a run: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from vla_common import entrypoint
from vla_common.durations import format_duration
from vla_evaluation.store.records import total
from vla_evaluation.terminal import plain, say, single_line
from vla_evaluation.workers.heartbeat import RENDERING

PLAIN_EVERY_S = 10.0
LONG_S = 600.0  # a longer run prints its expected duration once
MIN_EPISODES = 4  # of this invocation, until their pace is used for an estimate
INSTRUCTION_CHARS = 12, 52  # at least and at most, beside a bar
BAR_CHARS = 6, 24


@dataclass(frozen=True)
class ProgressTotals:
    """Sums over the tasks, and the pace of this invocation."""

    planned: int
    done: int
    successes: int
    steps_per_s: float | None  # None: no step yet
    left_s: float | None
    policy_errors: int = 0
    machines: str = ""  # each machine's share, where several work
    phase: str = ""  # before the first step and after the last

    @property
    def parts(self) -> list[str]:
        """The parts of the line; a narrow terminal wraps between them, never within a number."""
        rate = f"{100 * self.successes / self.done:.1f} %" if self.done else "–"
        rate += f" ({self.policy_errors} policy errors)" if self.policy_errors else ""
        pace = "" if self.steps_per_s is None else f"{self.steps_per_s:.0f} steps/s"
        left = "" if self.left_s is None else f"about {format_duration(self.left_s)} left"
        counted = f"{self.done}/{self.planned} episodes", f"success {rate}"
        return [part for part in (*counted, pace, self.phase or left, self.machines) if part]

    @property
    def line(self) -> str:
        return ", ".join(self.parts)


class Pace:
    """Turns counts into steps per second and time left, of this invocation only.

    expected_s: how long the invocation takes at the pace of an earlier run; used until its own first episode is done.
    """

    def __init__(self, counts: Mapping[int, Mapping[str, int]], now: float, expected_s: float | None = None):
        self.expected_s = expected_s
        self.start = self.first_step = now  # the simulators start in between
        self.done_before, self.steps_before = total(counts, "done"), total(counts, "steps")
        self.announced = False

    def announcement(self, totals: ProgressTotals) -> str | None:
        """Return, once, a line with the duration of a long run, when there is a pace to estimate it from."""
        if self.announced or totals.done - self.done_before < MIN_EPISODES or totals.left_s is None:
            return None
        self.announced = True
        if totals.left_s <= LONG_S:
            return None
        left = format_duration(totals.left_s)
        return f"about {left} remaining; Ctrl-C keeps finished episodes, --resume continues"

    def totals(
        self,
        counts: Mapping[int, Mapping[str, int]],
        now: float,
        machines: str = "",
        workers: Mapping[str, str] = MappingProxyType({}),
    ) -> ProgressTotals:
        planned, done, steps = (total(counts, key) for key in ("planned", "done", "steps"))
        new_done, new_steps = done - self.done_before, max(0, steps - self.steps_before)
        if not new_steps and not new_done:
            self.first_step = now
        pace = new_steps / max(now - self.first_step, 1e-9) if new_steps else None
        left = None
        if new_done and pace and done < planned:
            left = max(0.0, total(counts, "steps_of_done") / done * planned - steps) / pace
        elif self.expected_s and done < planned:  # pending episodes take their share of it, however late
            waiting = total(counts, "pending") / (planned - self.done_before)
            left = self.expected_s * max(waiting, 1 - (now - self.start) / self.expected_s) or None
        policy_errors = sum(row.get("policy_errors", 0) for row in counts.values())
        phase = ""
        if done == planned and workers:
            phase = RENDERING if RENDERING in workers.values() else "stopping the workers"
        elif done < planned and pace is None:
            phase = next((single_line(status) for status in workers.values() if not status.startswith("task ")), "")
        return ProgressTotals(planned, done, total(counts, "successes"), pace, left, policy_errors, machines, phase)


class PlainProgress:
    """A line every PLAIN_EVERY_S seconds, for logs and pipes."""

    def __init__(self, names: Mapping[int, str], counts, out=sys.stdout, expected_s: float | None = None):
        self.out, self.pace = out, Pace(counts, time.monotonic(), expected_s)
        self.last_at, self.last = 0.0, None

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        pass

    def print_line(self, line: str) -> None:
        say(line, self.out)

    def update(self, counts, workers: Mapping[str, str], machines: str = "") -> None:
        now = time.monotonic()
        totals = self.pace.totals(counts, now, machines, workers)
        if line := self.pace.announcement(totals):
            self.print_line(line)
        state = totals.done, totals.phase, total(counts, "steps")
        is_early = now - self.last_at < PLAIN_EVERY_S and totals.done < totals.planned
        if state != self.last and not is_early:
            self.last_at, self.last = now, state
            self.print_line(totals.line)


class LiveProgress:
    """A table that is updated in place: a bar per task, each worker's status, and the totals."""

    def __init__(
        self, names: Mapping[int, str], counts, console: Console | None = None, expected_s: float | None = None
    ):
        self.names = names
        self.console = console or entrypoint.console()
        self.pace = Pace(counts, time.monotonic(), expected_s)
        self.live = Live(console=self.console, auto_refresh=False, transient=False)

    def __enter__(self):
        self.live.__enter__()
        return self

    def __exit__(self, *exc) -> None:
        self.live.__exit__(*exc)

    def print_line(self, line: str) -> None:
        self.console.print(plain(line), highlight=False, markup=False)

    def update(self, counts, workers: Mapping[str, str], machines: str = "") -> None:
        totals = self.pace.totals(counts, time.monotonic(), machines, workers)
        if line := self.pace.announcement(totals):
            self.print_line(line)
        self.live.update(self.table(counts, workers, totals), refresh=True)

    def table(self, counts, workers: Mapping[str, str], totals: ProgressTotals) -> Group:
        """Return a line per task: number, instruction, bar, count, rate. Instructions are cut first, then the bar."""
        tasks = {task: counts[task] for task in self.visible(counts)}
        count_of = {task: f"{row['done']}/{row['planned']}" for task, row in tasks.items()}
        # Numbers take all that they need: three digits, the count, "100 %", and two spaces before each column.
        free = self.console.width - 3 - max(map(len, count_of.values()), default=3) - 5 - 3 * 2
        longest = min(max((len(self.names[task]) for task in tasks), default=0), INSTRUCTION_CHARS[1])
        bar = min(BAR_CHARS[1], free - 2 - min(longest, INSTRUCTION_CHARS[0]))
        bar = bar if bar >= BAR_CHARS[0] else 0
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(justify="right", width=3, style="dim")
        table.add_column(width=max(1, min(longest, free - (bar + 2 if bar else 0))), no_wrap=True, overflow="ellipsis")
        if bar:
            table.add_column(width=bar)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(justify="right", width=5)
        for task, row in tasks.items():
            rate = f"{100 * row['successes'] / row['done']:.0f} %" if row["done"] else ""
            bars = [task_bar(row, bar)] if bar else []
            table.add_row(str(task), Text(self.names[task]), *bars, count_of[task], rate)
        waiting = sorted({status for status in workers.values() if not status.startswith("task ")})
        texts = [f"{sum(s == status for s in workers.values())} × {single_line(status)}" for status in waiting]
        below = [Text(f"    {text}", style="dim", no_wrap=True, overflow="ellipsis") for text in texts]
        lines: list[str] = []
        for part in totals.parts:
            if lines and len(lines[-1]) + 2 + len(part) <= self.console.width - 4:
                lines[-1] += f", {part}"
            else:
                lines.append(part)
        return Group(table, *below, *(Text(f"    {line}", style="bold") for line in lines))

    def visible(self, counts) -> list[int]:
        """Return the tasks that fit on the screen: all, or the active ones and the latest done."""
        room = max(5, self.console.size.height - 8)
        tasks = list(counts)
        if len(tasks) <= room:
            return tasks
        active = [task for task in tasks if counts[task]["leased"]]
        started = [task for task in tasks if counts[task]["done"] and task not in active]
        return sorted((active + started[::-1])[:room] or tasks[:room])


def task_bar(row: Mapping[str, int], width: int) -> Text:
    """Return a bar of one task: successes green, failures red, the rest dim; each has its own line style too."""
    planned = max(row["planned"], 1)
    good = round(width * row["successes"] / planned)
    done = round(width * row["done"] / planned)
    parts = ("━", good, "green"), ("╍", done - good, "red"), ("─", width - done, "bright_black")
    return Text.assemble(*((line * length, style) for line, length, style in parts))


def make_progress(
    names: Mapping[int, str], counts: Mapping[int, Mapping[str, int]], expected_s: float | None = None
) -> LiveProgress | PlainProgress:
    """Return the display that fits standard output."""
    return (LiveProgress if sys.stdout.isatty() else PlainProgress)(names, counts, expected_s=expected_s)
