"""Run students' files: `python -m lessons.exercises.attempt FD` imports torch once and forks a process per file.

A packet on the socket FD is a request: [exercise, file, directory] as JSON, with two descriptors: the connection for
results, and the file for printed output. The connection gets lines: "ready" once all but the student's code is loaded,
the verdict, and the exit code. Each file runs in its own fork, so no file affects another. A second fork supervises it
and kills its process group when the other side closes the connection.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import runpy
import signal
import socket
import sys
import threading
import traceback

from lessons.exercises.grader import Verdict, failure, judge
from lessons.exercises.registry import exercise
from lessons.exercises.types import Exercise

MEMORY = 8 << 30  # bytes: far more than any exercise needs
PRINTED = 1 << 20  # bytes that a student's file may print


def attempt(exercise: Exercise, file: str) -> Verdict:
    """Return the verdict on a student's file."""
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


def main() -> None:
    """Fork a process per request until the request socket is closed."""
    with contextlib.suppress(ImportError):  # reported when a file is run
        importlib.import_module("torch")
    gc.freeze()  # keeps shared pages from being scanned, and copied, in every fork
    signal.signal(signal.SIGCHLD, _reap)
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        while True:
            request, fds, _, _ = socket.recv_fds(requests, 1 << 16, 2)
            if not request:
                return
            if os.fork() == 0:
                requests.close()
                _supervise(*json.loads(request), *fds)
            for fd in fds:
                os.close(fd)


def _reap(*_: object) -> None:
    """Reap the supervisors that have exited."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _supervise(name: str, file: str, directory: str, connection: int, printed: int) -> None:
    """Run a file in a child process and send its exit code. Exits this process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(directory)
    if (child := os.fork()) == 0:
        _try(name, file, connection, printed)
    threading.Thread(target=_kill_on_disconnect, args=(connection, child), daemon=True).start()
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    _kill(child)  # its process group too: until waitpid, the id is not reused
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(OSError):  # the other side has closed
        os.write(connection, f"exit code {code}\n".encode())
    os._exit(0)


def _kill_on_disconnect(connection: int, child: int) -> None:
    """Kill a process when the other side closes the connection."""
    with contextlib.suppress(OSError):  # closed with unread data
        os.read(connection, 1)
    _kill(child)


def _kill(child: int) -> None:
    for kill in (os.killpg, os.kill):  # it may not have a group yet
        with contextlib.suppress(ProcessLookupError):
            kill(child, signal.SIGKILL)


def _try(name: str, file: str, connection: int, printed: int) -> None:
    """Check a file and send the verdict. Exits this process."""
    code = 1
    try:
        os.setsid()
        for number in (1, 2):
            os.dup2(printed, number)
        selected = exercise(name)
        importlib.import_module(f"lessons.{selected.lesson}")
        selected.calls()
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_FSIZE, (PRINTED, PRINTED))
        os.write(connection, b"ready\n")
        os.write(connection, json.dumps(attempt(selected, file).to_dict()).encode() + b"\n")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
