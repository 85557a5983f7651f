"""Check a student's file in a process of its own, with limits of time and memory.

The processes are forked from one that has imported torch (multiprocessing's fork server): the import takes seconds, and
a class submits hundreds of files. A verdict is sent as JSON: nothing from a student's process is unpickled.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import resource
import runpy
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from lessons.exercises.grader import Verdict, failure, judge
from lessons.exercises.source import exercise
from lessons.exercises.types import Bilingual, Exercise

IMPORT_TIMEOUT_S = 120.0  # to import torch on a busy machine
LIMIT_S = 10.0  # for the student's code
START_ATTEMPTS = 100
MEMORY = 8 << 30  # bytes: far more than any exercise needs
PRINTED = 1 << 20  # bytes that a student's file may print
ALARM_S = 600  # a process ends by then, even if the one that started it has been killed
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["torch", __name__])


def check(name: str, file: Path, limit_s: float = LIMIT_S) -> tuple[Verdict, str]:
    """Return the verdict on a student's file, and the first 4000 bytes that it printed."""
    os.environ["OMP_NUM_THREADS"] = "1"  # of the fork server: a process with threads cannot fork safely
    answers, theirs = _SERVER.Pipe(duplex=False)
    with tempfile.NamedTemporaryFile() as printed, answers:
        process = _SERVER.Process(target=_attempt, args=(name, str(file), os.getcwd(), printed.name, theirs))
        for remaining in range(START_ATTEMPTS - 1, -1, -1):
            try:
                process.start()
                break
            except (OSError, EOFError):  # a student's file has ended the fork server: the next call starts another
                if not remaining:
                    raise
                time.sleep(0.1)
        theirs.close()
        try:
            verdict = _receive(answers, process, limit_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with all that it has started
            process.kill()
            process.join()
        output = printed.read(4000).decode(errors="replace")
    if verdict is None:
        last = (output.strip().splitlines() or [f"exit code {process.exitcode}"])[-1]
        verdict = failure(
            f"the process ended before the code could be checked: {last}",
            f"확인하기 전에 프로세스가 끝났습니다: {last}",
        )
    return verdict, output


def _receive(answers: Connection, process: BaseProcess, limit_s: float) -> Verdict | None:
    """Return the verdict, None if the process ends without one."""
    try:
        wait([answers, process.sentinel], IMPORT_TIMEOUT_S)
        answers.recv_bytes()  # all but the student's code is loaded
        if answers in (ready := wait([answers, process.sentinel], limit_s)):
            values = json.loads(answers.recv_bytes())
            texts = {name: Bilingual(**values[name]) for name in ("message", "advice")}
            return Verdict(**values | texts)
        if ready:
            return None
    except EOFError:
        return None
    seconds = f"{limit_s:g}"
    return failure(
        f"the code did not end within {seconds} s: is there an endless loop?",
        f"{seconds}초 안에 끝나지 않았습니다: 끝없는 loop가 있나요?",
    )


def _attempt(name: str, file: str, directory: str, printed: str, answers: Connection) -> None:
    """Check a file in this process, the leader of a group that can be killed, and send the verdict."""
    os.setsid()
    os.chdir(directory)
    descriptor = os.open(printed, os.O_WRONLY | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(descriptor, stream.fileno())
        stream.reconfigure(line_buffering=True)
    selected = exercise(name)
    importlib.import_module(f"lessons.{selected.lesson}")
    selected.calls()
    signal.alarm(ALARM_S)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (PRINTED, PRINTED))
    answers.send_bytes(b"ready")
    answers.send_bytes(json.dumps(asdict(_verdict(selected, file))).encode())


def _verdict(exercise: Exercise, file: str) -> Verdict:
    try:
        names = runpy.run_path(file)
    except SyntaxError as error:
        return failure(
            f"line {error.lineno} is not valid Python: {error.msg}",
            f"{error.lineno}행이 Python 문법에 맞지 않습니다: {error.msg}",
        )
    except (Exception, SystemExit) as error:
        message = f"{type(error).__name__}: {error}"
        return failure(f"running the file fails with {message}", f"파일이 오류로 끝납니다: {message}")
    if not callable(names.get(exercise.target)):
        return failure(f"the file does not define {exercise.target}", f"파일에 {exercise.target}이(가) 없습니다")
    try:
        return judge(exercise, names[exercise.target], file)
    except SystemExit:
        return failure("the code exits the program instead of returning", "값을 돌려주지 않고 프로그램을 끝냅니다")
