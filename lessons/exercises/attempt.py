"""The processes that students' files run in: `python -m lessons.exercises.attempt FD`, which imports torch once.

A packet on the socket FD asks for a file to be tried, [exercise, file, folder] as JSON, and brings a connection, and
where what it prints goes. To the connection go lines: "ready" when all but the student's own code is loaded, the
verdict, and how the process ended. What is asked for runs in a fork, so no file meets another; a second fork between
waits for its end, and brings it about, for all that it has started, when the connection's other side closes.
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

from lessons.exercises.book import exercise
from lessons.exercises.judging import Verdict, judge, wrong
from lessons.exercises.types import Exercise

MEMORY = 8 << 30  # bytes: far more than any exercise needs, less than a machine has
PRINTED = 1 << 20  # bytes that a student's file may print


def attempt(chosen: Exercise, file: str) -> Verdict:
    """Returns the verdict on a student's file."""
    try:
        names = runpy.run_path(file)
    except SyntaxError as error:
        return wrong(
            f"line {error.lineno} is no Python: {error.msg}",
            f"{error.lineno}행이 Python 문법에 맞지 않습니다: {error.msg}",
        )
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {error}"
        return wrong(f"the file ends with {said}", f"파일이 오류로 끝납니다: {said}")
    if not callable(names.get(chosen.target)):
        return wrong(f"the file defines no {chosen.target}", f"파일에 {chosen.target}이(가) 없습니다")
    try:
        return judge(chosen, names[chosen.target], file)
    except SystemExit:
        return wrong("it ends the program instead of returning", "값을 돌려주지 않고 프로그램을 끝냅니다")


def main() -> None:
    """Forks a process for every file that is asked for, until nobody can ask any more."""
    with contextlib.suppress(ImportError):  # told where a file is tried
        importlib.import_module("torch")
    gc.freeze()  # what all have alike is not looked through, and copied, in each
    signal.signal(signal.SIGCHLD, _reap)
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        while True:
            request, fds, _, _ = socket.recv_fds(asked, 1 << 16, 2)
            if not request:
                return
            if os.fork() == 0:
                asked.close()
                _keep(*json.loads(request), *fds)
            for fd in fds:
                os.close(fd)


def _reap(*_: object) -> None:
    """Takes note of those between that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _keep(name: str, file: str, directory: str, said: int, printed: int) -> None:
    """Has a file tried in a process of its own and says how that ended. Ends this process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(directory)
    if (child := os.fork()) == 0:
        _try(name, file, said, printed)
    threading.Thread(target=_end_with, args=(said, child), daemon=True).start()
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    _end(child)  # what it has started: until it is waited for, its number is nobody else's
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(OSError):  # nobody listens
        os.write(said, f"exit code {code}\n".encode())
    os._exit(0)


def _end_with(said: int, child: int) -> None:
    """Ends a process when nobody listens any more."""
    with contextlib.suppress(OSError):  # closed with words unread
        os.read(said, 1)
    _end(child)


def _end(child: int) -> None:
    for end in (os.killpg, os.kill):  # it may not have a group yet
        with contextlib.suppress(ProcessLookupError):
            end(child, signal.SIGKILL)


def _try(name: str, file: str, said: int, printed: int) -> None:
    """Judges a file by an exercise and says the verdict. Ends this process."""
    code = 1
    try:
        os.setsid()
        for number in (1, 2):
            os.dup2(printed, number)
        chosen = exercise(name)
        importlib.import_module(f"lessons.{chosen.lesson}")
        chosen.calls()
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_FSIZE, (PRINTED, PRINTED))
        os.write(said, b"ready\n")
        os.write(said, json.dumps(attempt(chosen, file).plain()).encode() + b"\n")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
