"""What a worker is doing and by when it will have moved on, in memory that its supervisor reads.

So a hang shows wherever it happens, in an import, a driver, an encoder or an exit, and what shows is the main thread's
own progress. Only where that rightly waits for somebody else, a second thread's heartbeat tells a patient process from
a dead one. Nothing is sent: a supervisor that was held up itself reads the present and not a backlog.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from enum import Enum

SIZE = 5 * 8
RENDERING = "rendering videos"  # how a worker calls that in the run's store


class Phase(Enum):
    """What a worker can be in the middle of; the words end "worker-0 … within 30 s"."""

    STARTING = "did not finish starting"
    IDLE = "did not look for work"
    SCENE = "did not finish building a scene"
    EPISODE = "showed no heartbeat in its episode"
    ANSWER = "did not give up an unanswered request"
    WAITING = "did not look whether the policy is back"
    SAVING = "did not finish saving"
    VIDEO = "did not draw the next frame of a video"
    ENDING = "did not finish ending"


PHASES = tuple(Phase)
FOR_OTHERS = (Phase.ANSWER, Phase.WAITING)  # long and without any work of its own


class Vitals:
    """Five numbers shared by a worker, which writes them, and its supervisor."""

    def __init__(self, handle: int):
        self.numbers = memoryview(mmap.mmap(handle, SIZE)).cast("d")  # deadline, phase, allowed time, steps, heartbeat

    @classmethod
    def create(cls) -> tuple[Vitals, int]:
        """Returns new vitals and the file descriptor by which a child finds them."""
        handle = os.memfd_create("vitals")
        os.ftruncate(handle, SIZE)
        return cls(handle), handle

    def enter(self, phase: Phase, within_s: float, steps: int = 0) -> None:
        """Says what is done now; it hangs unless another call follows `within_s` seconds later at the latest."""
        numbers = self.numbers
        numbers[0] = time.monotonic() + within_s  # first, so that no phase is ever seen with an older one's deadline
        numbers[1] = PHASES.index(phase)
        numbers[2] = within_s
        numbers[3] = steps

    def beat(self, every_s: float) -> None:
        """Starts the heartbeat, which lasts as long as the process runs."""

        def beating() -> None:
            while True:
                self.numbers[4] = time.monotonic()
                time.sleep(every_s)

        threading.Thread(target=beating, name="heartbeat", daemon=True).start()

    @property
    def steps(self) -> int:
        """Actions executed so far in the episode under way."""
        return int(self.numbers[3])

    def stuck(self, silence_s: float) -> str | None:
        """Returns what did not happen in time, in words; None while all goes well."""
        now, phase = time.monotonic(), PHASES[int(self.numbers[1])]
        if now > self.numbers[0]:
            return f"{phase.value} within {self.numbers[2]:g} s"
        if phase in FOR_OTHERS and now - self.numbers[4] > silence_s:
            return f"showed no heartbeat for {silence_s:g} s"
        return None
