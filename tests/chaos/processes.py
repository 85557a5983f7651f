"""Processes that carry this run's mark in their environment: found, counted, and none of them left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

MARK = "VLALAB_CHAOS"  # variable that every process of a stage inherits


def marked(mark: str) -> dict[int, list[str]]:
    """Return the command line of every live process with this mark, by pid."""
    entry, processes = f"{MARK}={mark}".encode(), {}
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if entry not in (directory / "environ").read_bytes().split(b"\0"):
                continue
            if (directory / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                processes[int(directory.name)] = (
                    (directory / "cmdline").read_bytes().decode(errors="replace").split("\0")
                )
    return processes


def running(mark: str, module: str, word: str = "") -> list[int]:
    """Return the marked processes that run a Python module, with `word` among their arguments; oldest first."""
    return sorted(
        pid for pid, arguments in marked(mark).items() if module in arguments and (not word or word in arguments)
    )  # fmt: skip


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal; False where the process is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def end_all(mark: str) -> None:
    """Kill every process with this mark."""
    for _ in range(50):
        left = marked(mark)
        if not left:
            return
        for pid in left:
            send(pid, signal.SIGKILL)
        time.sleep(0.1)


def resident_mb(root: int) -> float:
    """Return the memory (private and shared anonymous, in MB) of a process and its descendants."""
    return sum(_anonymous_kb(pid) for pid in tree(root)) / 1024


def tree(root: int) -> list[int]:
    """Return a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            fields = path.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    processes = [root]
    for pid in processes:
        processes += children.get(pid, [])
    return processes


def _anonymous_kb(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1])
    return 0
