"""More workers than cores while the policy thinks: one that waits for an answer leaves its core idle."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from vla_evaluation import provenance
from vla_evaluation.store.reading import StoreReader

LOOK_S = 60.0  # the kernel's shortest load average is of a minute
MOST_PER_CORE = 4


@dataclass
class Growth:
    """Decides when one more worker has something to do. worker_gb: the memory that it takes."""

    worker_gb: float
    looked: float = field(default_factory=time.monotonic)

    def why(self, store: StoreReader, invocation: int, workers: int) -> str:
        """Returns why one more is to be started beside so many, in words; "" where none is, or it is too early to say.

        The machine's load has to leave a core for the part of its time in which a worker does not wait. A policy at
        which questions wait longer than it thinks has enough of them.
        """
        if time.monotonic() - self.looked < LOOK_S:
            return ""
        self.looked = time.monotonic()
        spent, cores = store.spent(invocation), provenance.cores()
        if not spent["total"] or spent["server_queue"] > spent["server_infer"] or workers >= MOST_PER_CORE * cores:
            return ""
        waiting = min(1.0, spent["policy"] / spent["total"])
        pending = sum(row["pending"] for row in store.counts().values())
        if os.getloadavg()[0] + 1 - waiting > cores or not pending:
            return ""
        if provenance.free_memory_gb() < 2 * self.worker_gb:
            return ""
        return f"workers wait for the policy {waiting:.0%} of their time, and cores are idle: {workers + 1} from now on"
