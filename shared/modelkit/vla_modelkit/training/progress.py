"""A progress line with the remaining time, on terminals only.

On a narrow terminal the bar is dropped first, then figures from the last; numbers are never truncated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from vla_common import entrypoint
from vla_common.durations import format_duration

BAR_WIDTHS = 6, 24  # minimum and maximum; narrower terminals get no bar
DRAW_EVERY_S = 0.1
LONG_S = 600.0  # longer runs print an estimate once, also to a log
SURE_AFTER_S = 10.0  # the first steps are slow


class Progress:
    """Call `advance` after each of `total` steps, inside `with`. done: steps of an earlier run.

    long: text after the estimate, for runs of more than ten minutes. enabled: False prints nothing.
    """

    def __init__(
        self, total: float, done: float = 0, long: str = "", enabled: bool = True, console: Console | None = None
    ):
        self.total, self.done, self.long = total, done, long
        self.first, self.started, self.rendered_at = done, time.monotonic(), 0.0
        self.figures: tuple[str, ...] = ()
        self.console = console or entrypoint.console(highlight=False)
        self.enabled = enabled
        self.live = Live(console=self.console, auto_refresh=False) if enabled and self.console.is_terminal else None

    def __enter__(self) -> Progress:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self._draw()
            self.live.stop()

    def advance(self, *figures: str, steps: float = 1) -> None:
        """Count steps. figures: displayed next to the bar, the most important first; none keeps the last ones."""
        self.done += steps
        self.figures = figures or self.figures
        now = time.monotonic()
        if self.long and self.enabled and now - self.started >= SURE_AFTER_S:
            if (left := self.left_s(now) or 0.0) > LONG_S:
                print(f"this will take about {format_duration(left)} more; {self.long}", flush=True)
            self.long = ""
        if self.live and now - self.rendered_at >= DRAW_EVERY_S:
            self.rendered_at = now
            self._draw()

    def step_of(self, figure: str) -> Callable[[int], None]:
        """Return a callback for the steps of a sampler, which displays `figure`."""
        return lambda t: self.advance(figure)

    def left_s(self, now: float) -> float | None:
        """Return the estimated remaining seconds, None before the first step."""
        fresh = self.done - self.first
        return (now - self.started) / fresh * (self.total - self.done) if fresh > 0 else None

    def _draw(self) -> None:
        assert self.live
        left = self.left_s(time.monotonic())
        share = self.done / max(1, self.total)
        numbers = [f"{100 * share:.0f} %", f"{format_duration(left)} left", *self.figures]
        self.live.update(Text(line(share, numbers, self.console.width), no_wrap=True), refresh=True)


def line(share: float, numbers: Iterable[str], width: int) -> str:
    """Return a bar for a share (0 to 1), followed by numbers, in at most `width` characters."""
    figures = list(numbers)
    while len(figures) > 1 and len(", ".join(figures)) > width:
        figures.pop()
    text = ", ".join(figures)
    room = min(BAR_WIDTHS[1], width - len(text) - 2)
    if room < BAR_WIDTHS[0]:
        return text
    full = round(room * min(1.0, share))
    return f"{'━' * full}{'─' * (room - full)}  {text}"
