"""The processor time of a benchmark's processes at any moment while they ran."""

from __future__ import annotations

import contextlib
import threading
import time

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
