"""Progress of a run: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from vla_common import endings
from vla_common.durations import show_seconds
from vla_evaluation.terminal import one_line, plain, say
from vla_evaluation.workers.vitals import RENDERING

PLAIN_EVERY_S = 10.0
LONG_S = 600.0  # what takes longer is said once, so that it can be read before it scrolls by
SURE_AFTER = 4  # episodes of this invocation, until their pace says something
GAP = 2  # blanks between columns
NAME_WIDTHS = 12, 52  # least and most of an instruction that is shown beside a bar
BAR_WIDTHS = 6, 24


@dataclass(frozen=True)
class Totals:
    """Sums over the tasks, and the pace of this invocation."""

    planned: int
    done: int
    successes: int
    steps_per_s: float | None  # None: no step yet
    left_s: float | None
    policy_errors: int = 0
    machines: str = ""  # who does how much, where several do
    phase: str = ""  # what is done before the first step and after the last

    @property
    def parts(self) -> list[str]:
        """What the line consists of; a narrow terminal breaks it between these, never within a number."""
        rate = f"{100 * self.successes / self.done:.1f} %" if self.done else "–"
        rate += f" ({self.policy_errors} policy errors)" if self.policy_errors else ""
        pace = "" if self.steps_per_s is None else f"{self.steps_per_s:.0f} steps/s"
        left = "" if self.left_s is None else f"about {show_seconds(self.left_s)} left"
        counted = f"{self.done}/{self.planned} episodes", f"success {rate}"
        return [part for part in (*counted, pace, self.phase or left, self.machines) if part]

    @property
    def line(self) -> str:
        return ", ".join(self.parts)


class Pace:
    """Turns counts into steps per second and time left, of this invocation only.

    expected_s: how long the invocation takes if it goes as an earlier one; shown until its own first episode is done.
    """

    def __init__(self, counts: Mapping[int, Mapping[str, int]], now: float, expected_s: float | None = None):
        self.start = self.first_step = now  # what lies between is the start of the simulators
        self.done_before = sum(row["done"] for row in counts.values())
        self.steps_before = sum(row["steps"] for row in counts.values())
        self.expected_s = expected_s
        self.is_told = False

    def told_once(self, totals: Totals) -> str | None:
        """Returns a line that says how long a long run will take, once there is a pace to tell it from."""
        if self.is_told or totals.done - self.done_before < SURE_AFTER or totals.left_s is None:
            return None
        self.is_told = True
        if totals.left_s <= LONG_S:
            return None
        left = show_seconds(totals.left_s)
        return f"this will take about {left} more; Ctrl-C keeps what is finished, --resume goes on"

    def totals(
        self,
        counts: Mapping[int, Mapping[str, int]],
        now: float,
        machines: str = "",
        workers: Mapping[str, str] = MappingProxyType({}),
    ) -> Totals:
        planned, done, successes, steps, steps_of_done = (
            sum(row[key] for row in counts.values())
            for key in ("planned", "done", "successes", "steps", "steps_of_done")
        )
        fresh, walked = done - self.done_before, max(0, steps - self.steps_before)
        if not walked and not fresh:
            self.first_step = now
        pace = walked / max(now - self.first_step, 1e-9) if walked else None
        left = None
        if fresh and pace and done < planned:
            left = max(0.0, steps_of_done / done * planned - steps) / pace
        elif self.expected_s and done < planned:  # episodes that have not begun take their part of it, however late
            waiting = sum(row["pending"] for row in counts.values()) / (planned - self.done_before)
            left = self.expected_s * max(waiting, 1 - (now - self.start) / self.expected_s) or None
        policy_errors = sum(row.get("policy_errors", 0) for row in counts.values())
        if done == planned:
            phase = RENDERING if RENDERING in workers.values() else "ending the workers" if workers else ""
        else:
            waiting = [one_line(status) for status in workers.values() if not status.startswith("task ")]
            phase = waiting[0] if waiting and pace is None else ""
        return Totals(planned, done, successes, pace, left, policy_errors, machines, phase)


class PlainProgress:
    """One line now and then, for logs and pipes."""

    def __init__(self, names: Mapping[int, str], counts, out=sys.stdout, expected_s: float | None = None):
        self.names, self.out = names, out
        self.pace = Pace(counts, time.monotonic(), expected_s)
        self.last_at, self.last = 0.0, None

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        pass

    def say(self, line: str) -> None:
        say(line, self.out)

    def update(self, counts, workers: Mapping[str, str], machines: str = "") -> None:
        now = time.monotonic()
        totals = self.pace.totals(counts, now, machines, workers)
        if line := self.pace.told_once(totals):
            self.say(line)
        finished = totals.done == totals.planned
        seen = totals.done, totals.phase, sum(row["steps"] for row in counts.values())
        if seen == self.last or (now - self.last_at < PLAIN_EVERY_S and not finished):
            return
        self.last_at, self.last = now, seen
        self.say(totals.line)


class LiveProgress:
    """A table that stays in place: a bar per task, what each worker does, and the totals."""

    def __init__(
        self, names: Mapping[int, str], counts, console: Console | None = None, expected_s: float | None = None
    ):
        self.names = names
        self.console = console or endings.console()
        self.pace = Pace(counts, time.monotonic(), expected_s)
        self.live = Live(console=self.console, auto_refresh=False, transient=False)

    def __enter__(self):
        self.live.__enter__()
        return self

    def __exit__(self, *exc) -> None:
        self.live.__exit__(*exc)

    def say(self, line: str) -> None:
        self.console.print(plain(line), highlight=False, markup=False)

    def update(self, counts, workers: Mapping[str, str], machines: str = "") -> None:
        totals = self.pace.totals(counts, time.monotonic(), machines, workers)
        if line := self.pace.told_once(totals):
            self.say(line)
        self.live.update(self.table(counts, workers, totals), refresh=True)

    def table(self, counts, workers: Mapping[str, str], totals: Totals) -> Text:
        width = self.console.width
        rows = [(task, counts[task]) for task in self.shown(counts)]
        layout = Layout.fit(width, (len(self.names[task]) for task, _ in rows), (count_of(row) for _, row in rows))
        lines = [layout.line(task, self.names[task], row) for task, row in rows]
        waiting = sorted({status for status in workers.values() if not status.startswith("task ")})
        for status in waiting:
            text = f"{sum(s == status for s in workers.values())} × {one_line(status)}"
            lines.append(Text("    " + shorten(text, width - 4), style="dim"))
        lines += [Text("    " + line, style="bold") for line in broken(totals.parts, width - 4)]
        return Text("\n").join(lines)

    def shown(self, counts) -> list[int]:
        """Returns the tasks that fit on the screen: all, or those in work and those just done."""
        room = max(5, self.console.size.height - 8)
        tasks = list(counts)
        if len(tasks) <= room:
            return tasks
        active = [task for task in tasks if counts[task]["leased"]]
        started = [task for task in tasks if counts[task]["done"] and task not in active]
        return sorted((active + started[::-1])[:room] or tasks[:room])


@dataclass(frozen=True)
class Layout:
    """How wide the columns of a task's line are. Numbers have what they need; text gives way first, then the bar."""

    name: int
    bar: int  # 0: none
    count: int

    @classmethod
    def fit(cls, width: int, names: Iterable[int], counts: Iterable[str]) -> Layout:
        """Returns the layout for a terminal of that width. names: lengths of the tasks' names."""
        count = max(map(len, counts), default=3)
        room = width - len("100") - count - len("100 %") - 3 * GAP
        wanted = min(max(names, default=0), NAME_WIDTHS[1])
        bar = min(BAR_WIDTHS[1], room - GAP - min(wanted, NAME_WIDTHS[0]))
        if bar < BAR_WIDTHS[0]:
            return cls(max(0, min(wanted, room)), 0, count)
        return cls(min(wanted, room - GAP - bar), bar, count)

    def line(self, task: int, name: str, row: Mapping[str, int]) -> Text:
        """Returns one task's line: number, name, bar, count, rate."""
        rate = f"{100 * row['successes'] / row['done']:.0f} %" if row["done"] else ""
        numbers = f"{count_of(row):>{self.count}}{'':{GAP}}{rate:>5}"
        text = f"{shorten(name, self.name):<{self.name}}"
        parts = [Text(f"{task:>3}", style="dim"), *([Text(text)] if self.name else [])]
        return Text(" " * GAP).join([*parts, *([bar(row, self.bar)] if self.bar else []), Text(numbers)])


def count_of(row: Mapping[str, int]) -> str:
    return f"{row['done']}/{row['planned']}"


def shorten(text: str, width: int) -> str:
    """Returns a text of at most that many characters; what is missing is marked."""
    return text if len(text) <= width else text[: max(0, width - 1)].rstrip() + "…"


def broken(parts: Iterable[str], width: int) -> list[str]:
    """Returns parts joined by commas, on as many lines as they need."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
    return lines


def bar(row: Mapping[str, int], width: int) -> Text:
    """Returns a bar of one task: successes green, failures red, the rest dim; each with a line of its own too."""
    planned = max(row["planned"], 1)
    good = round(width * row["successes"] / planned)
    done = round(width * row["done"] / planned)
    parts = ("━", good, "green"), ("╍", done - good, "red"), ("─", width - done, "bright_black")
    return Text.assemble(*((line * length, style) for line, length, style in parts))


def make_progress(names: Mapping[int, str], counts, expected_s: float | None = None):
    """Returns the display that fits where standard output goes."""
    kind = LiveProgress if sys.stdout.isatty() else PlainProgress
    return kind(names, counts, expected_s=expected_s)
