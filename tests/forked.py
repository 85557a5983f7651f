"""Kernels of notebooks and programs, forked from a process that has imported what all import and that takes longest.

Each is a process of its own all the same, with its variables, folder and output, and ends with who asked for it. A
process that stands for it has its exit code, and passes on the signals that it gets. What the libraries read of the
variables as they are imported (HF_ENDPOINT, say) is the same for all: a test of that starts Python itself.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# None of them reads variables that notebooks differ in. The optimisers of torch import its compiler, used or not.
HEAVY = ("ipykernel.kernelapp", "numpy", "torch", "torch._dynamo", "matplotlib.figure")
BACKEND = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}  # as a kernel itself sets it
NAMESPACES = {"user": 0x10000000, "mnt": 0x00020000}  # linux/sched.h
PASSED = (signal.SIGINT, signal.SIGTERM, signal.SIGABRT)


# --- where tests run ----------------------------------------------------------------------------------------


def python(*words: str) -> list[str]:
    """Returns a command that does what `python WORDS` does, of "-m MODULE …" or "-c PROGRAM …"."""
    return [sys.executable, "-I", "-S", str(Path(__file__)), "program", str(served()), *words]


def kernel() -> list[str]:
    """Returns a kernel's command, as its specification has it."""
    return [sys.executable, "-I", "-S", str(Path(__file__)), "kernel", str(served()), "-f", "{connection_file}"]


def import_path() -> str:
    """Returns what PYTHONPATH is for programs of this repository."""
    shared = (str(directory) for directory in (ROOT / "shared").iterdir() if any(directory.glob("*/__init__.py")))
    return os.pathsep.join([str(ROOT), *shared])


@functools.cache
def served() -> Path:
    """Returns the socket of a process that forks until this one ends."""
    import subprocess

    where = None if len(tempfile.gettempdir()) < 60 else "/tmp"  # a socket's address has 107 bytes at most
    directory = tempfile.TemporaryDirectory(prefix="vlalab-forked-", dir=where)
    place = Path(directory.name) / "asked"
    env = {**os.environ, "PYTHONPATH": import_path()}
    command = [sys.executable, str(Path(__file__)), "serve", str(place)]
    process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(lambda: (process.stdin.close(), process.wait(60), directory.cleanup()))
    if process.stdout.readline() != b"ready\n":
        raise RuntimeError("the process that forks does not start; what it said is above")
    return place


# --- the process that forks ---------------------------------------------------------------------------------


def serve(place: str) -> None:
    """Forks a kernel or a program for everyone who asks."""
    import select

    sys.path.pop(0)  # tests/ itself, where this file lies
    os.environ.update(BACKEND)
    for name in HEAVY:
        with suppress(ImportError):  # not every environment has all
            import_module(name)
    gc.freeze()  # what all have alike is not looked through, and copied, in each
    signal.signal(signal.SIGCHLD, _reap)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        listener.listen()
        print("ready", flush=True)
        while listener in select.select([listener, sys.stdin], [], [])[0]:
            asked = listener.accept()[0]
            if os.fork() == 0:
                listener.close()
                return become(asked)
            asked.close()


def _reap(*_: object) -> None:
    """Takes note of all that have ended: their processor time counts as this process's."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def become(asked: socket.socket) -> None:
    """Turns a fork of this process into what was asked for, while this one waits to tell its end."""
    _, streams, _, _ = socket.recv_fds(asked, 1, 3)
    wanted = json.loads(asked.makefile().readline())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if child := os.fork():
        keep(asked, child)
    asked.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    _enter(wanted["process"])
    os.environ.clear()
    os.environ.update(wanted["variables"])
    os.chdir(wanted["folder"])
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # else all would draw the same
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    {"kernel": _run_kernel, "program": _run_program}[wanted["kind"]](wanted["words"])


def keep(asked: socket.socket, child: int) -> None:
    """Tells which process it is and how it ended; ends it where nobody listens any more. Ends this process."""

    def listen() -> None:
        with suppress(OSError):
            asked.recv(1)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)

    asked.sendall(f"{child}\n".encode())
    threading.Thread(target=listen, daemon=True).start()
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(OSError):
        asked.sendall(f"{code}\n".encode())
    os._exit(0)


def _enter(process: int) -> None:
    """Enters the namespaces of a process, where it has its own: a small disk, say."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    for name, kind in NAMESPACES.items():
        there = f"/proc/{process}/ns/{name}"
        if os.stat(there).st_ino == os.stat(f"/proc/self/ns/{name}").st_ino:
            continue
        opened = os.open(there, os.O_RDONLY)
        if libc.setns(opened, kind):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), there)
        os.close(opened)


def _run_kernel(words: Sequence[str]) -> None:
    os.environ.update(BACKEND)
    sys.argv = ["ipykernel_launcher", *words]
    import_module("ipykernel.kernelapp").launch_new_instance()


def _run_program(words: Sequence[str]) -> None:
    """Runs what stands behind -m or -c. Ends this process as Python does, but takes no module apart: that takes 1 s."""
    import faulthandler
    import runpy
    import traceback

    if "matplotlib" in sys.modules:
        sys.modules["matplotlib"].use(os.environ.get("MPLBACKEND", "agg"))
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    kind, what, *words = words
    sys.path.insert(0, os.getcwd() if kind == "-m" else "")
    sys.argv = [kind, *words]
    code = 0
    try:
        if kind == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            sys.modules["__main__"] = module = type(sys)("__main__")
            exec(compile(what, "<string>", "exec"), vars(module))
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # waits for threads, as at an end
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


# --- the process that stands for what was asked for -----------------------------------------------------------


def ask(kind: str, place: str, words: Sequence[str]) -> None:
    """Stands for a process that is forked there: ends as it does, and it with this."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(place)
        wanted = {"kind": kind, "variables": dict(os.environ), "folder": os.getcwd(), "words": words}
        socket.send_fds(asked, [b" "], [0, 1, 2])
        asked.sendall(json.dumps(wanted | {"process": os.getpid()}).encode() + b"\n")
        told = asked.makefile()
        process = int(told.readline())
        for number in PASSED:
            signal.signal(number, lambda number, _: os.kill(process, number))
        code = int(told.readline())
    if code < 0 and -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code) if code < 0 else sys.exit(code)


if __name__ == "__main__":
    serve(*sys.argv[2:]) if sys.argv[1] == "serve" else ask(sys.argv[1], sys.argv[2], sys.argv[3:])
