"""A student's file in a process of its own, which is ended when it takes too long; nothing of it runs here."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lessons.exercises.judging import Verdict, verdict_from, wrong

LOADING_S = 120.0  # until torch is imported, on a machine that is busy
LIMIT_S = 10.0  # for the student's code


def check(name: str, file: Path, limit_s: float = LIMIT_S) -> tuple[Verdict, str]:
    """Returns the verdict on a student's file, and the beginning of what it printed."""
    ours, theirs = os.pipe()
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(
            [sys.executable, "-m", "lessons.exercises.attempt", name, str(file), str(theirs)],
            stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT, pass_fds=[theirs],
            start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        os.close(theirs)
        try:
            verdict = _hear(ours, limit_s)
        finally:
            os.close(ours)
            _end(process)
        printed.seek(0)
        words = printed.read(4000).decode(errors="replace")
    return verdict or _silent(process.returncode, words), words


def _hear(pipe: int, limit_s: float) -> Verdict | None:
    """Returns what the process says, None where it ended without a word."""
    if _line(pipe, LOADING_S) != "ready":
        return None
    try:
        said = _line(pipe, limit_s)
    except TimeoutError:
        seconds = f"{limit_s:g}"
        return wrong(
            f"it did not end within {seconds} s: is there a loop without an end?",
            f"{seconds}초 안에 끝나지 않았습니다: 끝없는 loop가 있나요?",
        )
    return verdict_from(json.loads(said)) if said else None


def _line(pipe: int, limit_s: float) -> str:
    """Returns the next line, "" at the end. Raises TimeoutError."""
    until, line = time.monotonic() + limit_s, b""
    while not line.endswith(b"\n"):
        if not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
            raise TimeoutError
        if not (more := os.read(pipe, 1)):
            return ""
        line += more
    return line.decode().strip()


def _end(process: subprocess.Popen) -> None:
    """Ends the process and all that it has started."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1)  # one that has said all it had to say ends by itself
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _silent(code: int, words: str) -> Verdict:
    last = words.strip().splitlines()[-1:] or [f"exit code {code}"]
    return wrong(
        f"its process ended before it could be checked: {last[0]}", f"확인하기 전에 프로세스가 끝났습니다: {last[0]}"
    )
