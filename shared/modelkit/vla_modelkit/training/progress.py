"""How far a program has come and how long it will take: a line that stays in place on a terminal, silence elsewhere.

Numbers are never cut: where a line is too narrow the bar gives way first, then whole figures from the last one on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from vla_common import endings
from vla_common.durations import show_seconds

BAR_WIDTHS = 6, 24  # least and most; without room for the least there is none
DRAW_EVERY_S = 0.1
LONG_S = 600.0  # what takes longer is told once, also to a log
SURE_AFTER_S = 10.0  # of work, until the pace says something: the first steps are slow


class Progress:
    """`advance` after each of `total` steps, inside `with`. done: how many were done before.

    long: what to say, after the estimate, of a run that takes more than ten minutes.
    """

    def __init__(self, total: int, done: int = 0, long: str = "", shown: bool = True, console: Console | None = None):
        self.total, self.done, self.long = total, done, long
        self.first, self.started, self.drawn_at = done, time.monotonic(), 0.0
        self.figures: tuple[str, ...] = ()
        self.console = console or endings.console(highlight=False)
        self.shown = shown
        self.live = Live(console=self.console, auto_refresh=False) if shown and self.console.is_terminal else None

    def __enter__(self) -> Progress:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self._draw()
            self.live.stop()

    def advance(self, *figures: str, steps: int = 1) -> None:
        """Counts steps. figures: what is shown beside how far it is, the most important first; none keeps the last."""
        self.done += steps
        self.figures = figures or self.figures
        now = time.monotonic()
        self._tell(now)
        if self.live and now - self.drawn_at >= DRAW_EVERY_S:
            self.drawn_at = now
            self._draw()

    def step_of(self, what: str) -> Callable[[int], None]:
        """Returns a function for samplers to call at each of their steps; `what` is shown."""
        return lambda t: self.advance(what)

    def left_s(self, now: float) -> float | None:
        """Returns how many seconds the rest will take at the pace so far."""
        fresh = self.done - self.first
        return (now - self.started) / fresh * (self.total - self.done) if fresh > 0 else None

    def _tell(self, now: float) -> None:
        if not self.long or not self.shown or now - self.started < SURE_AFTER_S:
            return
        if (left := self.left_s(now) or 0.0) > LONG_S:
            print(f"this will take about {show_seconds(left)} more; {self.long}", flush=True)
        self.long = ""

    def _draw(self) -> None:
        assert self.live
        left = self.left_s(time.monotonic())
        share = self.done / max(1, self.total)
        numbers = [f"{100 * share:.0f} %", f"{show_seconds(left)} left", *self.figures]
        self.live.update(Text(line(share, numbers, self.console.width), no_wrap=True), refresh=True)


def line(share: float, numbers: Iterable[str], width: int) -> str:
    """Returns a bar of a share (0 to 1) with numbers behind it, in at most `width` characters."""
    kept = list(numbers)
    while len(kept) > 1 and len(", ".join(kept)) > width:
        kept.pop()
    text = ", ".join(kept)
    room = min(BAR_WIDTHS[1], width - len(text) - 2)
    if room < BAR_WIDTHS[0]:
        return text
    full = round(room * min(1.0, share))
    return f"{'━' * full}{'─' * (room - full)}  {text}"
