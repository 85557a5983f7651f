"""The clock of an invocation: it shows the time of day and nothing moves it."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class InvocationClock:
    """Seconds since the epoch as they were when the invocation began, and from then on by the monotonic clock.

    The evaluator hands it to its workers, so all of an invocation's times are comparable: no lease runs out and no
    duration gets negative where somebody sets the clock. The monotonic clock stands still while the machine sleeps, as
    the workers do. It is one boot's; no lease outlives its invocation, and so none its boot.
    """

    offset_s: float  # from the monotonic clock to the epoch

    @classmethod
    def start(cls) -> InvocationClock:
        return cls(time.time() - time.monotonic())

    def now(self) -> float:
        return self.offset_s + time.monotonic()
