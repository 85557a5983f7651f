"""Print the expected duration of a download once its speed is known."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vla_common.durations import format_duration

MEASURED_S = 15.0  # until then the speed is not representative
MIN_BYTES = 10**6  # bytes, to estimate a speed
LONG_S = 600.0  # shorter downloads print nothing


@contextmanager
def announced(directory: Path, total: int) -> Iterator[None]:
    """Within this context, print the expected duration of a download of `total` bytes if it is long."""
    ended, began, before = threading.Event(), time.monotonic(), _written(directory)

    def watch() -> None:
        while not ended.wait(MEASURED_S):
            if (come := _written(directory) - before) >= MIN_BYTES:
                if line := estimate(total, come, time.monotonic() - began):
                    print(line, flush=True)
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def estimate(total: int, come: int, seconds: float) -> str | None:
    """Return the message after `come` of `total` bytes in `seconds`, None for a short download."""
    left_s = (total - come) * seconds / come
    if left_s <= LONG_S:
        return None
    speed = come / seconds / 1e6
    return f"this will take about {format_duration(left_s)} more at {speed:.1f} MB/s; the same command resumes it"


def _written(directory: Path) -> int:
    """Return the bytes in a directory, including unfinished files."""
    return sum(_size(path) for path in directory.rglob("*"))


def _size(path: Path) -> int:
    try:
        status = path.lstat()
    except OSError:  # renamed just now
        return 0
    return min(status.st_size, status.st_blocks * 512)  # a file may be preallocated
