"""The bounded queue of requests, and how batches are cut from it. Used on the event loop only."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from vla_contract.protocol.problems import Problem
from vla_contract.protocol.types import Observation
from vla_contract.server.arrivals import Arrivals

WAIT_SHARE = 0.5  # of one inference, the maximum wait: beyond it, two half batches are faster


@dataclass(eq=False)
class InferenceJob:
    """One request for inference. `client` names its sender; an empty one is not expected to send another."""

    observation: Observation
    future: "asyncio.Future[Any]"
    client: str
    expires: float  # time.monotonic() after which the sender has given up
    queued: float = field(default_factory=time.monotonic)


class BatchQueue:
    """A FIFO of jobs, cut into batches of at most `max_batch`.

    A batch is cut when it is full, when every client that is expected is in it, or when the policy has been free for
    `max_wait_s` or half the time of one inference: waiting longer would cost more than a batch gains. The wait
    begins when the policy is free: while it computes, nothing is lost by a job that waits.
    """

    def __init__(self, size: int, max_wait_s: float):
        self.size, self.max_wait_s = size, max_wait_s
        self.max_batch = 1
        self.arrivals = Arrivals()
        self._jobs: deque[InferenceJob] = deque()
        self._infer_s = 0.0  # running mean of one inference's time
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._jobs)

    def put(self, job: InferenceJob) -> None:
        """Add a job. Raises Problem (429) when the queue is full."""
        self.require_room()
        if job.client:
            self.arrivals.asks(job.client, job.queued)
        self._jobs.append(job)
        self._changed.set()

    def require_room(self) -> None:
        """Raise Problem (429) when the queue is full."""
        if len(self._jobs) >= self.size:
            seconds = self._infer_s * (self.size / self.max_batch)
            detail = f"the queue is full, {self.size} requests are waiting; ask again in {seconds:.2g} s"
            raise Problem.retry_after("queue-full", f"{detail} or start fewer workers", seconds, queue_size=self.size)

    def remove(self, job: InferenceJob) -> bool:
        """Remove a job. Return False where it no longer waits."""
        if job not in self._jobs:
            return False
        self._jobs.remove(job)
        self.arrivals.forget(job.client)
        self._changed.set()
        return True

    def of_session(self, session: str) -> list[InferenceJob]:
        """Return the jobs of a session that wait."""
        return [job for job in self._jobs if job.observation.session == session]

    def clear(self) -> list[InferenceJob]:
        """Remove all jobs and return them."""
        jobs = list(self._jobs)
        self._jobs.clear()
        return jobs

    def record_inference(self, seconds: float, jobs: list[InferenceJob]) -> None:
        """Record the time of an inference and the clients that get its answers now."""
        self._infer_s = seconds if not self._infer_s else 0.8 * self._infer_s + 0.2 * seconds
        for job in jobs:
            self.arrivals.answered(job.client, time.monotonic())

    async def take(self) -> list[InferenceJob]:
        """Wait for the next batch and return it."""
        while not self._jobs:
            await self._wait(None)
        now, limit_s = time.monotonic(), min(self.max_wait_s, WAIT_SHARE * self._infer_s)
        end = now + limit_s
        while 0 < len(self._jobs) < self.max_batch:
            left_s = self.arrivals.due(now, end, self._infer_s) - now
            if left_s <= 0:
                break
            await self._wait(min(left_s, limit_s))
            now = time.monotonic()
        batch = [self._jobs.popleft() for _ in range(min(self.max_batch, len(self._jobs)))]
        for job in batch:
            self.arrivals.leaves_queue(job.client)
        return batch or await self.take()  # empty if the senders have disconnected

    async def _wait(self, timeout_s: float | None) -> bool:
        """Wait for a change of the queue. Return False where none comes in time."""
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        except asyncio.TimeoutError:
            return False
        return True
