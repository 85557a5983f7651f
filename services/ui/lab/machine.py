"""What this machine has left: memory, load, and disk where the volume lies."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from vla_common.volume import Volume

MEMORY = Path("/proc/meminfo")


@dataclass(frozen=True)
class Share:
    """So much of something is used of all there is; bytes, or cores."""

    used: float
    total: float

    @property
    def percent(self) -> float:
        """How much of it is used, 0 to 100."""
        return 100 * min(self.used / self.total, 1.0) if self.total else 0.0


def memory() -> Share:
    """Returns the machine's memory, without what the kernel would give back."""
    lines = (line.split() for line in MEMORY.read_text().splitlines())
    kilobytes = {line[0].rstrip(":"): int(line[1]) for line in lines}
    total = kilobytes["MemTotal"]
    return Share((total - kilobytes["MemAvailable"]) * 1024, total * 1024)


def disk() -> Share | None:
    """Returns the disk that the volume lies on; None where there is no volume to be seen."""
    try:
        found = shutil.disk_usage(Volume().root)
    except OSError:
        return None
    return Share(found.total - found.free, found.total)


def load() -> Share:
    """Returns how many programs want a core (the last minute's mean), of the cores that this process may use."""
    return Share(os.getloadavg()[0], len(os.sched_getaffinity(0)))
