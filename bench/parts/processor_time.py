"""The processor time of a benchmark's processes while they ran, and their pace without start-up."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Iterable

import numpy as np
import psutil


class ProcessorTime(threading.Thread):
    """Records every 0.2 s the processor time of all processes that this one started, inside a `with` block."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.samples: list[tuple[float, float]] = []  # time (s since the epoch), processor time (s)
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(0.2):
            total = 0.0
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    total += sum(process.cpu_times()[:4])  # its own, and that of its ended children
            self.samples.append((time.time(), total))

    def __enter__(self) -> ProcessorTime:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        self.join()

    def at(self, when: float) -> float:
        """Return the processor time (s) used until `when`."""
        return float(np.interp(when, *zip(*self.samples, strict=True)))

    def steady_state(self, ended: Iterable[tuple[str, float, int]]) -> tuple[float, float]:
        """Return units per second and processor time (s) per unit, from each worker's first episode on.

        ended: each episode's worker, end (s since the epoch) and units of work. A worker's first episode is not
        counted: it includes start-up. So a worker with a single one does not count.
        """
        by_worker: dict[str, list[tuple[float, int]]] = {}
        for worker, ended_at, units in ended:
            by_worker.setdefault(worker, []).append((ended_at, units))
        per_s, total, starts, ends = 0.0, 0, [], []
        for episodes in map(sorted, by_worker.values()):
            if len(episodes) > 1:
                units = sum(number for _, number in episodes[1:])
                starts.append(episodes[0][0])
                ends.append(episodes[-1][0])
                per_s += units / (ends[-1] - starts[-1])
                total += units
        return per_s, (self.at(statistics.mean(ends)) - self.at(statistics.mean(starts))) / total
