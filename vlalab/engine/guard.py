"""End the containers of a call when that call ends, even by kill -9.

Run as `python -m vlalab.engine.guard NAME …`.
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


@contextmanager
def guarded(*names: str) -> Iterator[None]:
    """Remove the containers of these names at the end of the block, also if this process is killed."""
    guard = start(*names)
    try:
        yield
    finally:
        remove(*names)
        release(guard)


Guard: TypeAlias = "subprocess.Popen[str]"


def start(*names: str) -> Guard:
    """Start a guard of this process, in its own session."""
    return subprocess.Popen(
        [sys.executable, "-m", "vlalab.engine.guard", *names],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        cwd=paths.ROOT, env={**os.environ, "PYTHONPATH": str(paths.ROOT)}, start_new_session=True, text=True,
    )  # fmt: skip


def release(guard: Guard) -> None:
    """Tell a guard that its containers have been removed."""
    guard.communicate(DONE)


def remove(*names: str) -> None:
    """Remove containers immediately; missing ones are ignored."""
    docker.run(["rm", "--force", "--volumes", *names], check=False)


def main(names: list[str]) -> None:
    """Wait for "done" or end of file; on end of file stop the containers, then remove them by force."""
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
