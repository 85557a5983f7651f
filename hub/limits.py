"""Memory and processor limits of a student's processes: a control group each, of either version.

Where systemd runs it makes the group (`systemd-run --scope`); elsewhere root does, below `vla-class`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

SYSTEMD = Path("/run/systemd/system")
ROOT = Path("/sys/fs/cgroup")
NAME = "vla-class"


def prefix(name: str, memory_gb: float, cpus: float) -> list[str]:
    """Return the command in front of a student's, which gives it a scope of systemd; empty without systemd."""
    if not SYSTEMD.is_dir():
        return []
    limits = [f"MemoryMax={round(memory_gb * 1e9)}", "MemorySwapMax=0"] if memory_gb else []
    limits += [f"CPUQuota={cpus * 100:.0f}%"] if cpus else []
    command = ["systemd-run", "--scope", "--quiet", "--collect", f"--unit={NAME}-{name}"]
    return [*command, *(word for limit in limits for word in ("-p", limit)), "--"]


def groups(name: str) -> list[Path]:
    """Return the directories of a student's control group: one in version 2, one per controller in version 1."""
    unified = ROOT / "cgroup.controllers"
    if unified.exists():
        return [ROOT / NAME / name]
    return [ROOT / controller / NAME / name for controller in ("memory", "cpu") if (ROOT / controller).is_dir()]


def join(name: str, memory_gb: float, cpus: float) -> None:
    """Move this process into a student's control group, with its limits. Raises OSError if there are no groups."""
    wanted: dict[str, str] = {}  # file → value; a kernel without swap accounting lacks the second of each
    if memory_gb:
        size = str(round(memory_gb * 1e9))
        wanted |= {"memory.limit_in_bytes": size, "memory.memsw.limit_in_bytes": size}
        wanted |= {"memory.max": size, "memory.swap.max": "0"}
    if cpus:
        wanted |= {"cpu.cfs_quota_us": f"{cpus * 100_000:.0f}", "cpu.max": f"{cpus * 100_000:.0f} 100000"}
    directories = groups(name)
    if not directories and wanted:
        raise OSError(f"{ROOT} has no control groups for memory; start the class with --memory 0 --cpus 0")
    for directory in directories:
        if (ROOT / "cgroup.controllers").exists():
            directory.parent.mkdir(exist_ok=True)
            for parent in (ROOT, directory.parent):
                (parent / "cgroup.subtree_control").write_text("+memory +cpu")
        directory.mkdir(parents=True, exist_ok=True)
        for file, value in wanted.items():
            if (directory / file).exists():
                (directory / file).write_text(value)
        (directory / "cgroup.procs").write_text(str(os.getpid()))


def kill(name: str) -> None:
    """End every process of a student, also one that detached itself, and remove the group."""
    if SYSTEMD.is_dir():
        scope = f"{NAME}-{name}.scope"
        subprocess.run(["systemctl", "kill", "--signal=SIGKILL", scope], capture_output=True)
        return
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


def uid_of(pid: int) -> int | None:
    """Return the owner of a process, None if it has ended."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def memory_bytes(name: str) -> int | None:
    """Return the memory that a student's processes use, None if none runs."""
    scope = ROOT / "system.slice" / f"{NAME}-{name}.scope"
    for directory in (scope, *groups(name)):
        for file in ("memory.current", "memory.usage_in_bytes"):
            if (directory / file).exists():
                return int((directory / file).read_text())
    return None
