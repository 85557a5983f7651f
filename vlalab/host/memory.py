"""Memory of a running service, read from the kernel, since `docker stats` takes two seconds."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def of_container(pid: int) -> int | None:
    """Return the bytes that a container uses without the page cache, as Docker counts; None if unknown.

    pid: its first process. Only cgroup v2 is read, which every supported system has.
    """
    try:
        _, _, path = Path(f"/proc/{pid}/cgroup").read_text().strip().split(":", 2)
        directory = CGROUPS / path.lstrip("/")
        counters = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
        used = int((directory / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    return max(0, used - int(counters.get("inactive_file", 0)))


def of_session(leader: int) -> int:
    """Return the resident bytes of all processes of a session; shared memory counts once per process."""
    pages = 0
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            if os.getsid(int(path.name)) == leader:
                pages += int((path / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def belongs_to_container(pid: int, container: str) -> bool:
    """Return whether a process runs in the container of that id."""
    try:
        return container in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False


def belongs_to_session(pid: int, leader: int) -> bool:
    """Return whether a process belongs to that session."""
    try:
        return os.getsid(pid) == leader
    except OSError:
        return False


def format_size(size: int | None) -> str:
    """Return bytes in MB or GB, "" for None."""
    if size is None:
        return ""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
