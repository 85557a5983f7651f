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
    begins when the policy is free: while it computes, nothing is lost by a job that waits. A named token has at
    most an equal part of a batch, by the tenants that are active: else one with many waiting jobs would also fill the
    gap between each answer and the next request of the others.
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
        now, limit_s = time.monotonic(), min(self.max_wait_s, WAIT_SHARE * self._infer_s)
        end = now + limit_s
        while 0 < self._jobs.available(share := self._share(now)) < self.max_batch:
            left_s = self.arrivals.due(now, end, self._infer_s) - now
            if left_s <= 0:
                break
            await self._wait(min(left_s, limit_s))
            now = time.monotonic()
        batch = self._jobs.pop(self.max_batch, share)
        for job in batch:
            self.arrivals.leaves_queue(job.client)
        return batch or await self.take()  # empty if the senders have disconnected

    def _share(self, now: float) -> int:
        """Return the jobs that a named token may have in one batch: an equal part of it among the active tenants."""
        return max(1, self.max_batch // max(1, len(self.arrivals.tenants(now, self._infer_s) | self._jobs.tenants())))

    async def _wait(self, timeout_s: float | None) -> bool:
        """Wait for a change of the queue. Return False where none comes in time."""
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        except asyncio.TimeoutError:
            return False
        return True
