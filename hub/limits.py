"""Memory and processor limits of a student's processes: a control group each below `vla-class`, of either version."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
NAME = "vla-class"
IS_UNIFIED = (ROOT / "cgroup.controllers").exists()  # version 2


def groups(name: str) -> list[Path]:
    """Return the directories of a student's control group: one in version 2, one per controller in version 1."""
    roots = [ROOT] if IS_UNIFIED else [ROOT / "memory", ROOT / "cpu"]
    return [root / NAME / name for root in roots if root.is_dir()]


def join(name: str, memory_gb: float, cpus: float) -> None:
    """Move this process into a student's control group, with its limits. Raises OSError if there are no groups."""
    values: dict[str, str] = {}  # by file; a version has its own, and a kernel may lack those of swap
    if memory_gb:
        size = str(round(memory_gb * 1e9))
        values |= {"memory.limit_in_bytes": size, "memory.memsw.limit_in_bytes": size}
        values |= {"memory.max": size, "memory.swap.max": "0"}
    if cpus:
        values |= {"cpu.cfs_quota_us": f"{cpus * 100_000:.0f}", "cpu.max": f"{cpus * 100_000:.0f} 100000"}
    directories = groups(name)
    if not directories and values:
        raise OSError(f"{ROOT} has no control groups for memory; start the class with --memory 0 --cpus 0")
    for directory in directories:
        directory.parent.mkdir(exist_ok=True)
        for parent in (ROOT, directory.parent) if IS_UNIFIED else ():
            (parent / "cgroup.subtree_control").write_text("+memory +cpu")
        directory.mkdir(exist_ok=True)
        for file, value in values.items():
            if (directory / file).exists():
                (directory / file).write_text(value)
        (directory / "cgroup.procs").write_text(str(os.getpid()))


def kill(name: str) -> None:
    """End every process of a student, also one that detached itself, and remove the group."""
    for directory in groups(name):
        deadline = time.monotonic() + 5
        while directory.is_dir() and time.monotonic() < deadline:
            for pid in (directory / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            try:
                directory.rmdir()
            except OSError:  # a killed process is still there
                time.sleep(0.02)


def memory_bytes(name: str) -> int | None:
    """Return the memory that a student's processes use, None if none runs."""
    for directory in groups(name):
        for file in ("memory.current", "memory.usage_in_bytes"):
            if (directory / file).exists():
                return int((directory / file).read_text())
    return None


def uid_of(pid: int) -> int | None:
    """Return the owner of a process, None if it has ended."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
