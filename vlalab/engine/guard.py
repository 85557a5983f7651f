"""Ends containers that one call has started when that call is gone, even by kill -9.

Run as `python -m vlalab.engine.guard NAME …`.
A local process dies with its parent; a container belongs to the engine and does not. So whoever starts one for itself
alone holds the other end of this program's stdin: "done" means that all is taken away, a mere end that nobody did it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from vlalab.engine import docker
from vlalab.host import paths

DONE = "done"
GRACE_S = 30  # an evaluator saves what is finished
TRIES = 5  # a container that was just being made appears a little later


@contextmanager
def guarded(*names: str) -> Iterator[None]:
    """Sees to it that the containers of those names do not outlive this process; an orderly end removes them too."""
    guard = start(*names)
    try:
        yield
    finally:
        remove(*names)
        release(guard)


Guard: TypeAlias = "subprocess.Popen[str]"


def start(*names: str) -> Guard:
    """Return a guard that watches over this process, in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "vlalab.engine.guard", *names],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        cwd=paths.ROOT, env={**os.environ, "PYTHONPATH": str(paths.ROOT)}, start_new_session=True, text=True,
    )  # fmt: skip


def release(guard: Guard) -> None:
    """Tells a guard that there is nothing left to end."""
    guard.communicate(DONE)


def remove(*names: str) -> None:
    """Remove containers at once; those that are gone already are none of its business."""
    docker.run(["rm", "--force", "--volumes", *names], check=False)


def main(names: list[str]) -> None:
    """Waits for the word or the end, and in the second case ends the containers: asked first, then by force."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.read().strip() == DONE:
        return
    docker.run(["stop", "--signal", "SIGINT", "-t", str(GRACE_S), *names], check=False)
    for _ in range(TRIES):
        remove(*names)
        time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1:])
