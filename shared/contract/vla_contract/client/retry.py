"""When a client tries again, and how long it waits before."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class RetryRule:
    """Exponential backoff with full jitter, under a limit of tries and of time."""

    retries: int = 8  # tries after the first
    first_s: float = 0.05
    longest_s: float = 5.0
    jitter: Callable[[float, float], float] = random.uniform

    def __post_init__(self) -> None:
        if self.retries < 0 or not 0 < self.first_s <= self.longest_s:
            raise ValueError(f"{self}; expected retries >= 0 and 0 < first_s <= longest_s")

    def wait_s(self, attempt: int, asked_s: float | None) -> float:
        """Returns the pause after failed try number `attempt` (from 0), never shorter than the server asked."""
        backoff = self.jitter(0.0, min(self.longest_s, self.first_s * 2**attempt))
        return backoff if asked_s is None else asked_s + backoff


class Deadline:
    """A point in time that a call, its retries included, must not pass."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left_s(self) -> float:
        return self._end - time.monotonic()
