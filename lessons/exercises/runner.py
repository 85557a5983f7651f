"""Check a student's file in a separate process with a time limit.

Each process is forked from one that has imported torch (`lessons/exercises/attempt.py`): the import takes seconds, and
a class submits hundreds of files.
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

from lessons.exercises.grader import Verdict, failure, verdict_from_dict

IMPORT_TIMEOUT_S = 120.0  # to import torch on a busy machine
EXIT_TIMEOUT_S = 20.0  # to end a killed process on a busy machine
LIMIT_S = 10.0  # for the student's code


def check(name: str, file: Path, limit_s: float = LIMIT_S) -> tuple[Verdict, str]:
    """Return the verdict on a student's file, and the first 4000 bytes that it printed."""
    with tempfile.TemporaryFile() as printed, _FORK_SERVER.attempt(name, file, printed.fileno()) as attempt:
        result = _wait_verdict(attempt, limit_s)
        ended = result if isinstance(result, str) else _stop(attempt)
        printed.seek(0)
        output = printed.read(4000).decode(errors="replace")
    return (result if isinstance(result, Verdict) else _no_verdict(ended, output)), output


def _wait_verdict(attempt: socket.socket, limit_s: float) -> Verdict | str:
    """Return the verdict, or the line that the process sent instead of one."""
    if (line := _line(attempt, IMPORT_TIMEOUT_S)) != "ready":
        return line
    try:
        line = _line(attempt, limit_s)
    except TimeoutError:
        seconds = f"{limit_s:g}"
        return failure(
            f"the code did not end within {seconds} s: is there an endless loop?",
            f"{seconds}초 안에 끝나지 않았습니다: 끝없는 loop가 있나요?",
        )
    return verdict_from_dict(json.loads(line)) if line.startswith("{") else line


def _stop(attempt: socket.socket) -> str:
    """Kill the process group. Return the line with its exit code, or "" if its supervisor is gone too."""
    attempt.shutdown(socket.SHUT_WR)
    with contextlib.suppress(TimeoutError):
        while (line := _line(attempt, EXIT_TIMEOUT_S)) and not line.startswith("exit"):
            pass
        return line
    return ""


def _line(attempt: socket.socket, limit_s: float) -> str:
    """Return the next line, "" at the end. Raises TimeoutError."""
    until, line = time.monotonic() + limit_s, b""
    while not line.endswith(b"\n"):
        if not select.select([attempt], [], [], max(0.0, until - time.monotonic()))[0]:
            raise TimeoutError
        if not (more := attempt.recv(1)):
            return ""
        line += more
    return line.decode().strip()


def _no_verdict(ended: str, output: str) -> Verdict:
    last = (output.strip().splitlines()[-1:] or [ended or "no exit code"])[0]
    return failure(
        f"the process ended before the code could be checked: {last}", f"확인하기 전에 프로세스가 끝났습니다: {last}"
    )


class _ForkServer:
    """The process from which attempts are forked: started on first use, restarted if it has died."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None
        self._requests: socket.socket | None = None

    def attempt(self, name: str, file: Path, printed: int) -> socket.socket:
        """Return the connection to a new process for a student's file; its output goes to `printed`."""
        connection, peer = socket.socketpair()
        request = json.dumps([name, str(file), os.getcwd()]).encode()
        with peer, self._lock:
            for _ in range(2):
                if self._requests is None:
                    self._start()
                try:
                    socket.send_fds(self._requests, [request], [peer.fileno(), printed])
                    break
                except OSError:  # the process has died
                    self.close()
        return connection

    def _start(self) -> None:
        self._requests, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with peer:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lessons.exercises.attempt", str(peer.fileno())],
                stdin=subprocess.DEVNULL, pass_fds=[peer.fileno()], start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},  # one thread: it forks
            )  # fmt: skip
        atexit.register(self.close)

    def close(self) -> None:
        """End the process; the next attempt starts another."""
        if self._requests is not None:
            self._requests.close()
            self._process.kill()
            self._process.wait()
        self._requests = self._process = None


_FORK_SERVER = _ForkServer()
