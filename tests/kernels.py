"""Kernels of notebooks, forked from a process that has imported what every notebook imports and that takes longest.

Each is a kernel of its own all the same, with its variables, folder and connection, and ends with who asked for it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path

# None of them reads variables that notebooks differ in. The optimisers of torch import its compiler, used or not.
HEAVY = ("ipykernel.kernelapp", "numpy", "torch", "torch._dynamo", "matplotlib.figure")
BACKEND = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}  # as a kernel itself sets it


def command(place: Path) -> list[str]:
    """Returns the arguments of a process that serves kernels at that socket until its standard input ends."""
    return [sys.executable, str(Path(__file__)), "serve", str(place)]


def asking(place: Path) -> list[str]:
    """Returns a kernel's command, as its specification has it: of a process that stands for one served there."""
    return [sys.executable, "-I", "-S", str(Path(__file__)), "ask", str(place), "-f", "{connection_file}"]


def serve(place: str) -> None:
    """Forks a kernel for everyone who asks."""
    import select
    import signal

    sys.path.pop(0)  # tests/ itself, where this file lies
    os.environ.update(BACKEND)
    for name in HEAVY:
        with suppress(ImportError):  # not every environment has all
            import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
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


def become(asked: socket.socket) -> None:
    """Turns this process into the kernel that was asked for."""
    import signal

    wanted = json.loads(asked.makefile().readline())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(wanted["variables"] | BACKEND)
    os.chdir(wanted["folder"])
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # else every kernel would draw the same
    threading.Thread(target=lambda: (asked.recv(1), os._exit(1)), daemon=True).start()
    sys.argv = ["ipykernel_launcher", *wanted["arguments"]]
    import_module("ipykernel.kernelapp").launch_new_instance()


def ask(place: str, *arguments: str) -> None:
    """Stands for a kernel that is served there: ends with it, and it with this."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(place)
        wanted = {"variables": dict(os.environ), "folder": os.getcwd(), "arguments": arguments}
        asked.sendall(json.dumps(wanted).encode() + b"\n")
        with suppress(ConnectionResetError):
            asked.recv(1)


if __name__ == "__main__":
    {"serve": serve, "ask": ask}[sys.argv[1]](*sys.argv[2:])
