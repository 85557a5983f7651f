"""Progress of a run: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from vla_common import entrypoint
from vla_common.durations import format_duration
from vla_evaluation.store.records import Counts, total
from vla_evaluation.terminal import plain, say, single_line
from vla_evaluation.workers.heartbeat import RENDERING

PLAIN_EVERY_S = 10.0
LONG_S = 600.0  # a longer run prints its expected duration once
FAILING = 10  # episodes without a success, after which an audit is offered
MIN_EPISODES = 4  # of this invocation, until their pace is used for an estimate
INSTRUCTION_CHARS, BAR_CHARS = 52, 24


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
    def line(self) -> str:
        rate = f"{100 * self.successes / self.done:.1f} %" if self.done else "–"
        rate += f" ({self.policy_errors} policy errors)" if self.policy_errors else ""
        pace = "" if self.steps_per_s is None else f"{self.steps_per_s:.0f} steps/s"
        left = "" if self.left_s is None else f"about {format_duration(self.left_s)} left"
        counted = f"{self.done}/{self.planned} episodes", f"success {rate}"
        return ", ".join(part for part in (*counted, pace, self.phase or left, self.machines) if part)


class Pace:
    """Turns counts into steps per second and time left, of this invocation only."""

    def __init__(self, counts: Counts, now: float):
        self.first_step = now  # the simulators start before it
        self.done_before, self.steps_before = total(counts, "done"), total(counts, "steps")
        self.announced = self.offered = False

    def announcement(self, totals: ProgressTotals) -> str | None:
        """Return, once, a line with the duration of a long run, when there is a pace to estimate it from."""
        if self.announced or totals.done - self.done_before < MIN_EPISODES or totals.left_s is None:
            return None
        self.announced = True
        if totals.left_s <= LONG_S:
            return None
        left = format_duration(totals.left_s)
        return f"about {left} remaining; Ctrl-C keeps finished episodes, --resume continues"

    def offer(self, totals: ProgressTotals) -> str | None:
        """Return, once, a line that offers an audit, when all of the first episodes failed."""
        if self.offered or totals.done < FAILING or totals.successes:
            return None
        self.offered = True
        return f"the first {totals.done} episodes failed; `./lab audit POLICY` finds a wrong convention of the policy"

    def totals(
        self, counts: Counts, now: float, machines: str = "", workers: Mapping[str, str] = MappingProxyType({})
    ) -> ProgressTotals:
        planned, done, steps = (total(counts, key) for key in ("planned", "done", "steps"))
        new_done, new_steps = done - self.done_before, max(0, steps - self.steps_before)
        if not new_steps and not new_done:
            self.first_step = now
        pace = new_steps / max(now - self.first_step, 1e-9) if new_steps else None
        left = None
        if new_done and pace and done < planned:
            left = max(0.0, total(counts, "steps_of_done") / done * planned - steps) / pace
        policy_errors = sum(row.get("policy_errors", 0) for row in counts.values())
        phase = ""
        if done == planned and workers:
            phase = RENDERING if RENDERING in workers.values() else "stopping the workers"
        elif done < planned and pace is None:
            phase = next((single_line(status) for status in workers.values() if not status.startswith("task ")), "")
        return ProgressTotals(planned, done, total(counts, "successes"), pace, left, policy_errors, machines, phase)


class Progress:
    """A table on a terminal, updated in place: a bar per task, each worker's status, and the totals. Elsewhere a line
    of the totals every PLAIN_EVERY_S seconds.
    """

    def __init__(self, names: Mapping[int, str], counts: Counts, console: Console | None = None):
        self.names, self.console = names, console or entrypoint.console()
        self.pace = Pace(counts, time.monotonic())
        self.live = Live(console=self.console, auto_refresh=False) if self.console.is_terminal else None
        self.last_at, self.last = 0.0, (0, "", -1)

    def __enter__(self) -> Progress:
        if self.live:
            self.live.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        if self.live:
            self.live.__exit__(*exc)

    def print_line(self, line: str) -> None:
        if self.live:
            self.console.print(plain(line), highlight=False, markup=False)
        else:
            say(line, self.console.file)

    def update(self, counts: Counts, workers: Mapping[str, str], machines: str = "") -> None:
        now = time.monotonic()
        totals = self.pace.totals(counts, now, machines, workers)
        for line in (self.pace.announcement(totals), self.pace.offer(totals)):
            if line:
                self.print_line(line)
        if self.live:
            self.live.update(self.table(counts, workers, totals), refresh=True)
            return
        state = totals.done, totals.phase, total(counts, "steps")
        is_early = now - self.last_at < PLAIN_EVERY_S and totals.done < totals.planned
        if state != self.last and not is_early:
            self.last_at, self.last = now, state
            self.print_line(totals.line)

    def table(self, counts: Counts, workers: Mapping[str, str], totals: ProgressTotals) -> Group:
        """Return a line per task: number, instruction, bar, count, rate. Narrow terminals shorten the instructions."""
        has_bar = self.console.width >= 60
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(justify="right", width=3, style="dim")
        table.add_column(max_width=INSTRUCTION_CHARS)
        if has_bar:
            table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(justify="right", width=5, no_wrap=True)
        for task in self.visible(counts):
            row = counts[task]
            planned, done = max(row["planned"], 1), row["done"]
            good = round(BAR_CHARS * row["successes"] / planned)
            bad = round(BAR_CHARS * done / planned) - good
            parts = ("━", good, "green"), ("╍", bad, "red"), ("─", BAR_CHARS - good - bad, "bright_black")
            bar = [Text.assemble(*((line * length, style) for line, length, style in parts))] if has_bar else []
            instruction = Text(self.names[task], no_wrap=True, overflow="ellipsis")
            rate = f"{100 * row['successes'] / done:.0f} %" if done else ""
            table.add_row(str(task), instruction, *bar, f"{done}/{row['planned']}", rate)
        waiting = Counter(status for status in workers.values() if not status.startswith("task "))
        texts = [f"    {count} × {single_line(status)}" for status, count in sorted(waiting.items())]
        below = [Text(text, style="dim", no_wrap=True, overflow="ellipsis") for text in texts]
        return Group(table, *below, Text(f"    {totals.line}", style="bold"))

    def visible(self, counts: Counts) -> list[int]:
        """Return the tasks that fit on the screen: all, or the active ones and the latest done."""
        room, tasks = max(5, self.console.size.height - 8), list(counts)
        if len(tasks) <= room:
            return tasks
        active = [task for task in tasks if counts[task]["leased"]]
        started = [task for task in tasks if counts[task]["done"] and task not in active]
        return sorted((active + started[::-1])[:room] or tasks[:room])
