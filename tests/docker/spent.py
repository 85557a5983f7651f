"""Processor time of what an engine started: no child of the tests, but in control groups that the kernel counts."""

from __future__ import annotations

import re
from pathlib import Path

ROOTS = {"cpuacct.usage": Path("/sys/fs/cgroup/cpuacct/docker"), "cpu.stat": Path("/sys/fs/cgroup/docker")}


def split() -> tuple[float, float]:
    """Returns the seconds of all containers so far, and of builds among them."""
    return so_far(), so_far("buildkit")


def so_far(below: str = ".") -> float:
    """Returns the seconds of all containers since the machine's start ("buildkit": of builds), 0.0 where none is kept.

    An engine whose groups systemd makes keeps none of those that ended.
    """
    said = [directory / below / name for name, directory in ROOTS.items()]
    return max((cpu_seconds(path.read_text()) for path in said if path.exists()), default=0.0)


def cpu_seconds(text: str) -> float:
    """Return the CPU time in a control group's file, in s: `usage_usec` of version 2, or version 1's nanoseconds."""
    if match := re.search(r"(?m)^usage_usec (\d+)$", text):
        return int(match[1]) / 1e6
    match = re.search(r"(?m)^(\d+)$", text)
    return int(match[1]) / 1e9 if match else 0.0
