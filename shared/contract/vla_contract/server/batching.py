"""The bounded queue between the event loop and the policy's thread, and how batches are cut from it."""

import threading
import time
from asyncio import Future
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from vla_contract.protocol.problems import Problem
from vla_contract.protocol.types import Observation
from vla_contract.server.arrivals import Arrivals

WAIT_SHARE = 0.5  # never wait longer for others than this share of one inference: beyond, two half batches are faster


@dataclass(eq=False)
class Job:
    """One request for inference. `future` belongs to the event loop; `client` tells requests' senders apart.

    An empty `client` is one that is not expected to ask again.
    """

    observation: Observation
    future: Future
    client: str
    expires: float  # time.monotonic() after which nobody waits for the answer
    queued: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class Call:
    """Something else to be done on the policy's thread, in turn: a reset. Not counted against the bound.

    Without a future, nobody waits for it.
    """

    function: Callable[[], object]
    future: Future | None = None


class BatchQueue:
    """A FIFO of jobs, cut into batches of at most `max_batch`.

    A batch is cut when it is full, when every client that is expected is in it, or when the policy's thread has waited
    for `max_wait_s` or half the time of one inference: waiting longer would cost more than a batch gains. The wait
    begins when that thread is free: while it computes, nothing is lost by a job that waits.
    """

    def __init__(self, size: int, max_wait_s: float):
        self.size, self.max_wait_s = size, max_wait_s
        self.max_batch = 1
        self._items: deque[Job | Call] = deque()
        self._jobs = 0
        self._infer_s = 0.0  # running mean of one inference's time
        self._arrivals = Arrivals()
        self._changed = threading.Condition()
        self._closed = False
        self._at_leisure: Call | None = None

    def __len__(self) -> int:
        return self._jobs

    def put(self, item: Job | Call) -> None:
        """Adds an item. Raises Problem (429) when as many jobs wait as may, (503) when the service stops."""
        with self._changed:
            if self._closed:
                raise stopping()
            if isinstance(item, Job):
                self.require_room()
                self._jobs += 1
                if item.client:
                    self._arrivals.asks(item.client, item.queued)
            self._items.append(item)
            self._changed.notify()

    def require_room(self) -> None:
        """Raise Problem (429) when as many jobs wait as may."""
        if self._jobs >= self.size:
            seconds = self._infer_s * (self._jobs / self.max_batch)
            detail = f"{self._jobs} requests are waiting, as many as may; ask again in {seconds:.2g} s"
            raise Problem.retry_after("queue-full", f"{detail} or start fewer workers", seconds, queue_size=self.size)

    def remove(self, job: Job) -> bool:
        """Takes a job out. Returns False where it no longer waits."""
        with self._changed:
            if job not in self._items:
                return False
            self._items.remove(job)
            self._arrivals.forget(job.client)
            self._jobs -= 1
            return True

    def answered(self, jobs: list[Job]) -> None:
        """Notes that these get their answers now."""
        with self._changed:
            now = time.monotonic()
            for job in jobs:
                self._arrivals.answered(job.client, now)

    def forget(self, client: str) -> None:
        """Expects a client no more."""
        with self._changed:
            self._arrivals.forget(client)

    def at_leisure(self, function: Callable[[], object]) -> None:
        """Has `take` return a call of `function` once nothing else waits; a second one before that replaces it."""
        with self._changed:
            self._at_leisure = Call(function)
            self._changed.notify()

    def take(self) -> list[Job] | Call | None:
        """Returns the next batch or call, waiting for one; None once the queue is closed and empty."""
        with self._changed:
            while True:
                while not self._items:
                    if self._closed:
                        return None
                    if self._at_leisure is not None:
                        call, self._at_leisure = self._at_leisure, None
                        return call
                    self._changed.wait()
                if isinstance(self._items[0], Call):
                    return self._items.popleft()
                self._wait_for_others()
                if batch := self._cut():  # else the queue was closed meanwhile, or its jobs were taken back
                    return batch

    def inferred(self, seconds: float) -> None:
        """Notes how long an inference took."""
        self._infer_s = seconds if not self._infer_s else 0.8 * self._infer_s + 0.2 * seconds

    def close(self) -> list[Job | Call]:
        """Refuses new items, wakes the taker and returns what was still waiting."""
        with self._changed:
            self._closed = True
            left, self._jobs = list(self._items), 0
            self._items.clear()
            self._changed.notify_all()
            return left

    def _wait_for_others(self) -> None:
        now, limit_s = time.monotonic(), min(self.max_wait_s, WAIT_SHARE * self._infer_s)
        end = now + limit_s
        while 0 < self._jobs < self.max_batch and not self._closed:
            left = self._arrivals.due(now, end, self._infer_s) - now
            if left <= 0:
                return
            self._changed.wait(min(left, limit_s))
            now = time.monotonic()

    def _cut(self) -> list[Job]:
        batch: list[Job] = []
        while self._items and len(batch) < self.max_batch and isinstance(self._items[0], Job):
            batch.append(self._items.popleft())
            self._arrivals.leaves_queue(batch[-1].client)
        self._jobs -= len(batch)
        return batch


def stopping() -> Problem:
    """Return the answer to requests while the service stops."""
    return Problem.retry_after("stopping", "the service is stopping; ask again once it is back", 1.0)
