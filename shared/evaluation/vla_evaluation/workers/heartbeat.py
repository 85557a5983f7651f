"""A worker's phase and its deadline, in memory shared with the supervisor.

A missed deadline reveals a hang anywhere: in an import, a driver, an encoder or at exit. While the main thread waits
for another program, a second thread's heartbeat distinguishes a waiting process from a stuck one. Shared memory has no
backlog: a supervisor that was delayed itself reads the current state.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from enum import Enum

SIZE = 5 * 8
RENDERING = "rendering videos"  # a worker's status in the run store


class Phase(Enum):
    """A worker's activity; the value completes "worker-0 … within 30 s"."""

    STARTING = "did not finish starting"
    IDLE = "did not look for work"
    SCENE = "did not finish building a scene"
    EPISODE = "showed no heartbeat in its episode"
    ANSWER = "did not time out an unanswered request"
    WAITING = "did not check for the policy"
    SAVING = "did not finish saving"
    VIDEO = "did not render the next frame of a video"
    EXITING = "did not exit"


PHASES = tuple(Phase)
WAITS_FOR_POLICY = (Phase.ANSWER, Phase.WAITING)  # long, without any work of its own


class WorkerHeartbeat:
    """Five numbers in shared memory, written by a worker and read by its supervisor."""

    def __init__(self, handle: int):
        self.numbers = memoryview(mmap.mmap(handle, SIZE)).cast("d")  # deadline, phase, allowed time, steps, heartbeat

    @classmethod
    def create(cls) -> tuple[WorkerHeartbeat, int]:
        """Return a new one and the file descriptor by which a child process opens it."""
        handle = os.memfd_create("heartbeat")
        os.ftruncate(handle, SIZE)
        return cls(handle), handle

    def enter(self, phase: Phase, within_s: float, steps: int = 0) -> None:
        """Enter a phase; it counts as a hang unless the next call follows within `within_s` seconds."""
        numbers = self.numbers
        numbers[0] = time.monotonic() + within_s  # first: no phase is read with an earlier deadline
        numbers[1] = PHASES.index(phase)
        numbers[2] = within_s
        numbers[3] = steps

    def start_thread(self, every_s: float) -> None:
        """Start the heartbeat, which lasts as long as the process runs."""

        def beat() -> None:
            while True:
                self.numbers[4] = time.monotonic()
                time.sleep(every_s)

        threading.Thread(target=beat, name="heartbeat", daemon=True).start()

    @property
    def steps(self) -> int:
        """Actions executed so far in the current episode."""
        return int(self.numbers[3])

    def stall(self, silence_s: float) -> str | None:
        """Return the missed deadline as text, None without one."""
        now, phase = time.monotonic(), PHASES[int(self.numbers[1])]
        if now > self.numbers[0]:
            return f"{phase.value} within {self.numbers[2]:g} s"
        if phase in WAITS_FOR_POLICY and now - self.numbers[4] > silence_s:
            return f"showed no heartbeat for {silence_s:g} s"
        return None
