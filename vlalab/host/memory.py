"""How much memory a running service uses, read from the kernel: `docker stats` takes two seconds for it."""

from __future__ import annotations

import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def of_container(pid: int) -> int | None:
    """Returns the bytes a container uses, without the files it has merely read; None where they cannot be told.

    pid: its first process. The kernel's page cache for files is taken off, as Docker does it.
    """
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines() if pid else []
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if not controllers:
                return _used(CGROUPS / path.lstrip("/"), "memory.current", "inactive_file")
            if "memory" in controllers.split(","):
                return _used(CGROUPS / "memory" / path.lstrip("/"), "memory.usage_in_bytes", "total_inactive_file")
    except (OSError, ValueError):
        return None
    return None


def _used(folder: Path, counter: str, cached: str) -> int:
    counters = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return max(0, int((folder / counter).read_text()) - int(counters.get(cached, 0)))


def of_session(leader: int) -> int:
    """Returns the resident bytes of all processes of a session; what they share counts once for each."""
    page = os.sysconf("SC_PAGE_SIZE")
    return sum(page * pages for session, pages in _processes() if session == leader)


def _processes() -> list[tuple[int, int]]:
    """Returns (session, resident pages) of every process."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (fields := stat_fields(int(folder.name))):
            found.append((int(fields[3]), int(fields[21])))  # proc_pid_stat(5): session is field 6, rss 24
    return found


def stat_fields(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat behind the name, which may hold blanks: proc_pid_stat(5), fields 3 on.

    The state is the first. Nothing for a process that is gone.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def belongs_to_container(pid: int, container: str) -> bool:
    """Returns whether a process runs in the container of that id."""
    try:
        return container in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False


def belongs_to_session(pid: int, leader: int) -> bool:
    """Returns whether a process is of that session."""
    fields = stat_fields(pid)
    return bool(fields) and int(fields[3]) == leader


def spell(size: int | None) -> str:
    """Returns bytes in MB or GB, "" for what is not known."""
    if size is None:
        return ""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
