"""A student's file in a process of its own, which is ended when it takes too long; nothing of it runs here.

Each is forked from one process that has torch imported and runs nothing else (`lessons/exercises/attempt.py`):
importing takes seconds, and a class hands in hundreds of files.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from lessons.exercises.judging import Verdict, verdict_from, wrong

LOADING_S = 120.0  # until torch is imported, on a machine that is busy
ENDING_S = 20.0  # until a process that is told to end has ended, on such a machine
LIMIT_S = 10.0  # for the student's code


def check(name: str, file: Path, limit_s: float = LIMIT_S) -> tuple[Verdict, str]:
    """Returns the verdict on a student's file, and the beginning of what it printed."""
    with tempfile.TemporaryFile() as printed, _SOURCE.attempt(name, file, printed.fileno()) as attempt:
        said = _hear(attempt, limit_s)
        ended = said if isinstance(said, str) else _end(attempt)
        printed.seek(0)
        words = printed.read(4000).decode(errors="replace")
    return (said if isinstance(said, Verdict) else _silent(ended, words)), words


def _hear(attempt: socket.socket, limit_s: float) -> Verdict | str:
    """Returns what the process says; in words how it ended where it did so without a verdict."""
    if (said := _line(attempt, LOADING_S)) != "ready":
        return said
    try:
        said = _line(attempt, limit_s)
    except TimeoutError:
        seconds = f"{limit_s:g}"
        return wrong(
            f"it did not end within {seconds} s: is there a loop without an end?",
            f"{seconds}초 안에 끝나지 않았습니다: 끝없는 loop가 있나요?",
        )
    return verdict_from(json.loads(said)) if said.startswith("{") else said


def _end(attempt: socket.socket) -> str:
    """Has the process and all that it has started ended; returns how it ended, "" where nobody is left to tell."""
    attempt.shutdown(socket.SHUT_WR)
    with contextlib.suppress(TimeoutError):
        while (said := _line(attempt, ENDING_S)) and not said.startswith("exit"):
            pass
        return said
    return ""


def _line(attempt: socket.socket, limit_s: float) -> str:
    """Returns the next line, "" at the end. Raises TimeoutError."""
    until, line = time.monotonic() + limit_s, b""
    while not line.endswith(b"\n"):
        if not select.select([attempt], [], [], max(0.0, until - time.monotonic()))[0]:
            raise TimeoutError
        if not (more := attempt.recv(1)):
            return ""
        line += more
    return line.decode().strip()


def _silent(ended: str, words: str) -> Verdict:
    last = (words.strip().splitlines()[-1:] or [ended or "nobody is left to say how"])[0]
    return wrong(
        f"its process ended before it could be checked: {last}", f"확인하기 전에 프로세스가 끝났습니다: {last}"
    )


class _Source:
    """The process that attempts are forked from: started at the first, anew where it is gone, ended with this one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None
        self._asking: socket.socket | None = None

    def attempt(self, name: str, file: Path, printed: int) -> socket.socket:
        """Returns the connection to a new process for a student's file; what it prints goes to `printed`."""
        ours, theirs = socket.socketpair()
        request = json.dumps([name, str(file), os.getcwd()]).encode()
        with theirs, self._lock:
            for _ in range(2):
                if self._asking is None:
                    self._start()
                try:
                    socket.send_fds(self._asking, [request], [theirs.fileno(), printed])
                    break
                except OSError:  # it was ended from outside
                    self.close()
        return ours

    def _start(self) -> None:
        self._asking, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lessons.exercises.attempt", str(theirs.fileno())],
                stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},  # one thread: it forks
            )  # fmt: skip
        atexit.register(self.close)

    def close(self) -> None:
        """Ends the process; the next attempt starts another."""
        if self._asking is not None:
            self._asking.close()
            self._process.kill()
            self._process.wait()
        self._asking = self._process = None


_SOURCE = _Source()
