"""How long a download will take, said once it is known how fast the bytes come."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vla_common.durations import show_seconds

MEASURED_S = 15.0  # the first seconds of a download, with its connections, say little
LEAST = 10**6  # bytes; fewer are no pace yet
LONG_S = 600.0  # what takes longer is said


@contextmanager
def announced(directory: Path, total: int) -> Iterator[None]:
    """Says how long `total` bytes into a folder will take, if that is long, after some seconds of its body."""
    ended, began, before = threading.Event(), time.monotonic(), _written(directory)

    def watch() -> None:
        while not ended.wait(MEASURED_S):
            if (come := _written(directory) - before) >= LEAST:
                if line := estimate(total, come, time.monotonic() - began):
                    print(line, flush=True)
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def estimate(total: int, come: int, seconds: float) -> str | None:
    """Returns the line for a download of which `come` of `total` bytes came in so many seconds; None: not long."""
    left_s = (total - come) * seconds / come
    if left_s <= LONG_S:
        return None
    speed = come / seconds / 1e6
    return f"this will take about {show_seconds(left_s)} more at {speed:.1f} MB/s; stopped, the same command goes on"


def _written(directory: Path) -> int:
    """Returns how many bytes lie in a folder, those of unfinished files too."""
    return sum(_size(path) for path in directory.rglob("*"))


def _size(path: Path) -> int:
    try:
        status = path.lstat()
    except OSError:  # renamed just now
        return 0
    return min(status.st_size, status.st_blocks * 512)  # a file may be made long before its bytes come
