"""How long a task took here last time: what was long is told before it begins."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vlalab.host import state
from vlalab.host.console import LabError, say

LONG_S = 600.0  # who waits longer than this wants to know before
FOLDER = "lasting"


@contextmanager
def announced(*words: str) -> Iterator[None]:
    """Says how long the same task took last time, if that was long; notes how long it takes now, if it comes to an end.

    words: what makes it the same: the task, and what it is given.
    """
    seconds = _last(state.folder(FOLDER, make=False) / _name(words))
    if seconds and seconds > LONG_S:
        say(f"./lab {' '.join(words)} took {spelled(seconds)} on this machine last time")
    began = time.monotonic()
    yield
    with suppress(OSError, LabError):  # a full disk is no reason to lose what was done
        state.write(state.folder(FOLDER) / _name(words), f"{time.monotonic() - began:.0f}")


def spelled(seconds: float) -> str:
    """Returns a long duration in words: "34 min", "2 h 05 min"."""
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _name(words: tuple[str, ...]) -> str:
    return "-".join(words)


def _last(path: Path) -> float | None:
    try:
        return float(state.read(path) or "none")
    except ValueError:  # none, or damaged: as good as none
        return None
