"""robosuite's clock of observables, which need not be asked at each of a control step's 25 physics steps."""

from __future__ import annotations

from typing import Any


class SamplingClock:
    """The clock that all enabled observables of an environment share, in their own arithmetic.

    `shared` is False where their clocks differ, as after `modify_observable(…, "sampling_rate", …)`.
    """

    def __init__(self, observables: list[Any]):
        self._observables = [each for each in observables if each.is_enabled()]
        states = {
            (each._time_since_last_sample, each._sampled, each._sampling_timestep, each._current_delay)
            for each in self._observables
        }
        self.shared = len(states) == 1 and all(delay == 0 for *_, delay in states)
        if self.shared:
            self.pull()

    def pull(self) -> None:
        """Read the clock from the observables, after an update."""
        first = self._observables[0]
        self._time, self._sampled, self._period = (
            first._time_since_last_sample,
            first._sampled,
            first._sampling_timestep,
        )

    def tick(self, seconds: float) -> bool:
        """Advance by `seconds` and return False, or return True if the observables must be updated for that."""
        time = self._time + seconds
        if time >= self._period or not self._sampled:
            self.push()
            return True
        self._time = time
        return False

    def push(self) -> None:
        """Set the observables' clocks."""
        for each in self._observables:
            each._time_since_last_sample = self._time
