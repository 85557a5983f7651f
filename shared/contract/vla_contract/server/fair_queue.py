"""Jobs of several tenants in a fair order: one that sends many gets its turn and no more."""

import sys
from collections import Counter, deque
from typing import TYPE_CHECKING

from vla_contract.server.tenants import Tenant
from vla_contract.server.token_file import MAX_TOKENS

if TYPE_CHECKING:
    from vla_contract.server.batching import InferenceJob


class FairQueue:
    """Start-time fair queuing (Goyal, Vin and Cheng, 1996) with equal weights, in which every job has length 1.

    A tenant's jobs leave in the order of arrival. Between tenants the lowest start time wins: a tenant's own start
    time grows by 1 with each of its jobs, and one that had nothing waiting starts at that of the last job that left,
    so idle time earns nothing. Jobs of a single tenant are a FIFO.
    """

    def __init__(self) -> None:
        self._jobs: dict[Tenant, deque[InferenceJob]] = {}  # never empty ones
        self._starts: dict[Tenant, int] = {}
        self._now = 0  # the start time of the last job that left
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def tenants(self) -> set[Tenant]:
        """Return the tenants with waiting jobs."""
        return set(self._jobs)

    def available(self, share: int) -> int:
        """Return the number of jobs that a batch may have, with at most `share` of each named token."""
        return sum(min(len(jobs), _limit(tenant, share)) for tenant, jobs in self._jobs.items())

    def waiting(self, tenant: Tenant) -> int:
        """Return the number of a tenant's jobs."""
        return len(self._jobs.get(tenant, ()))

    def append(self, job: "InferenceJob") -> None:
        """Add a job as its tenant's last."""
        jobs = self._jobs.get(job.tenant)
        if jobs is None:
            jobs = self._jobs[job.tenant] = deque()
            self._starts[job.tenant] = max(self._starts.get(job.tenant, 0), self._now)
        jobs.append(job)
        self._length += 1

    def pop(self, count: int, share: int) -> "list[InferenceJob]":
        """Remove the `count` jobs whose turn it is, or fewer: at most `share` of each named token. Return them."""
        taken: Counter[Tenant] = Counter()
        batch: list[InferenceJob] = []
        while len(batch) < count:
            tenants = [tenant for tenant in self._jobs if taken[tenant] < _limit(tenant, share)]
            if not tenants:
                break
            tenant = min(tenants, key=lambda other: (self._starts[other], self._jobs[other][0].queued))
            self._now = self._starts[tenant]
            self._starts[tenant] += 1
            taken[tenant] += 1
            batch.append(self._jobs[tenant][0])
            self.remove(batch[-1])
        if len(self._starts) > 2 * MAX_TOKENS:  # names come and go; those without a job lose one turn at most
            self._starts = {waiting: self._starts[waiting] for waiting in self._jobs}
        return batch

    def remove(self, job: "InferenceJob") -> None:
        """Remove a job. Raises ValueError where it does not wait."""
        jobs = self._jobs.get(job.tenant, deque())
        jobs.remove(job)
        self._length -= 1
        if not jobs:
            del self._jobs[job.tenant]

    def longest(self) -> Tenant:
        """Return the tenant with the most waiting jobs."""
        return max(self._jobs, key=lambda tenant: len(self._jobs[tenant]))

    def newest(self, tenant: Tenant) -> "InferenceJob":
        """Return a tenant's last job."""
        return self._jobs[tenant][-1]

    def jobs(self) -> "list[InferenceJob]":
        """Return all jobs, tenant by tenant."""
        return [job for jobs in self._jobs.values() for job in jobs]


def _limit(tenant: Tenant, share: int) -> int:
    """Return the jobs that a tenant may have in a batch: without limits, all."""
    return sys.maxsize if tenant.limits is None else share
