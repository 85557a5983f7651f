"""End the container of a call when that call ends, even by kill -9.

Run as `python -m vlalab.engine.guard NAME`.
A local process dies with its parent; a container belongs to the engine and does not. So the starter of a private
container holds the other end of this program's stdin: "done" means that it removed the container, end of file that it
was killed.
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
GRACE_S = 30  # an evaluator saves its finished episodes
TRIES = 5  # a container that is being created appears later


Guard: TypeAlias = "subprocess.Popen[str]"


@contextmanager
def guarded(name: str) -> Iterator[None]:
    """Remove the container of that name at the end of the block, also if this process is killed."""
    guard = start(name)
    try:
        yield
    finally:
        remove(name)
        release(guard)


def start(name: str) -> Guard:
    """Start a guard of this process, in its own session."""
    return subprocess.Popen(
        [sys.executable, "-m", "vlalab.engine.guard", name],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        cwd=paths.ROOT, env={**os.environ, "PYTHONPATH": str(paths.ROOT)}, start_new_session=True, text=True,
    )  # fmt: skip


def release(guard: Guard) -> None:
    """Tell a guard that its container has been removed."""
    guard.communicate(DONE)


def remove(name: str) -> None:
    """Remove a container immediately, if it exists."""
    docker.run(["rm", "--force", "--volumes", name], check=False)


def main(name: str) -> None:
    """Wait for "done" or end of file; on end of file stop the container, then remove it by force."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.read().strip() == DONE:
        return
    docker.run(["stop", "--signal", "SIGINT", "-t", str(GRACE_S), name], check=False)
    for _ in range(TRIES):
        remove(name)
        time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1])
