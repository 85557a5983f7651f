"""The bounded queue of requests, and how batches are cut from it. Used on the event loop only."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from vla_contract.protocol.problems import Problem
from vla_contract.protocol.types import Observation
from vla_contract.server.arrivals import Arrivals
from vla_contract.server.fair_queue import FairQueue
from vla_contract.server.tenants import Tenant

WAIT_SHARE = 0.5  # of one inference, the maximum wait: beyond it, two half batches are faster


@dataclass(eq=False)
class InferenceJob:
    """One request for inference. `client` names its sender; an empty one is not expected to send another."""

    observation: Observation
    future: "asyncio.Future[Any]"
    client: str
    tenant: Tenant
    expires: float  # time.monotonic() after which the sender has given up
    queued: float = field(default_factory=time.monotonic)


class BatchQueue:
    """Jobs, the tenants' in turn, cut into batches of at most `max_batch`.

    A batch is cut when it is full, when every client that is expected is in it, or when the policy has been free for
    `max_wait_s` or half the time of one inference: waiting longer would cost more than a batch gains. The wait
    begins when the policy is free: while it computes, nothing is lost by a job that waits. A batch that is full of few
    tenants' jobs also waits for expected clients of other tenants: without that, one with many waiting jobs would fill
    the gap between each answer and the next request of the others. The fewer tenants are active, the shorter.
    """

    def __init__(self, size: int, max_wait_s: float):
        self.size, self.max_wait_s = size, max_wait_s
        self.max_batch = 1
        self.arrivals = Arrivals()
        self._jobs = FairQueue()
        self._infer_s = 0.0  # running mean of one inference's time
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._jobs)

    def put(self, job: InferenceJob) -> None:
        """Add a job. Raises Problem (429) when the queue is full.

        A full queue takes the job of a tenant with less than its share in place of the newest job of the longest.
        """
        self.require_room(job.tenant)
        if len(self._jobs) >= self.size:
            displaced = self._jobs.newest(self._jobs.longest())
            self.remove(displaced)
            if not displaced.future.done():
                displaced.future.set_exception(self._full())
        if job.client:
            self.arrivals.asks(job.client, job.queued, job.tenant)
        self._jobs.append(job)
        self._changed.set()

    def require_room(self, tenant: Tenant) -> None:
        """Raise Problem (429) when the queue is full and no tenant has more waiting jobs than this one would have."""
        if len(self._jobs) >= self.size:
            longest = self._jobs.waiting(self._jobs.longest())
            if self._jobs.waiting(tenant) + 1 >= longest:
                raise self._full()

    def _full(self) -> Problem:
        seconds = self._infer_s * (self.size / self.max_batch)
        detail = f"the queue is full, {self.size} requests are waiting; ask again in {seconds:.2g} s"
        return Problem.retry_after("queue-full", f"{detail} or start fewer workers", seconds, queue_size=self.size)

    def remove(self, job: InferenceJob) -> bool:
        """Remove a job. Return False where it no longer waits."""
        try:
            self._jobs.remove(job)
        except ValueError:
            return False
        self.arrivals.forget(job.client)
        self._changed.set()
        return True

    def of_session(self, session: str) -> list[InferenceJob]:
        """Return the jobs of a session that wait."""
        return [job for job in self._jobs.jobs() if job.observation.session == session]

    def clear(self) -> list[InferenceJob]:
        """Remove all jobs and return them."""
        jobs, self._jobs = self._jobs.jobs(), FairQueue()
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
        start = now = time.monotonic()
        while 0 < self._jobs.tenants < self.max_batch:
            is_full = len(self._jobs) >= self.max_batch
            share = min(1.0, self.arrivals.tenants(now) / self.max_batch) if is_full else 1.0
            limit_s = min(self.max_wait_s, WAIT_SHARE * self._infer_s * share)
            absent_from = self._jobs.waiting if is_full else None
            left_s = self.arrivals.due(now, start + limit_s, self._infer_s, absent_from) - now
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
