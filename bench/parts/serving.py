"""Servers for benchmarks: an application in a child process, and programs of an environment."""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHARED = [
    str(ROOT),
    *(str(ROOT / "shared" / name) for name in ("common", "contract", "modelkit", "evaluation", "datasets")),
]
VARIABLES = {**os.environ, "PYTHONPATH": os.pathsep.join(SHARED)}


@contextmanager
def served(make_app: Callable, *arguments: object, timeout_s: float = 60.0) -> Iterator[tuple[str, int]]:
    """Serve `make_app(*arguments)` in a child process; yield its URL and pid once it is ready."""
    from vla_contract import PolicyClient

    context = multiprocessing.get_context("spawn")
    parent_pipe, child_pipe = context.Pipe()
    process = context.Process(target=_serve, args=(child_pipe, make_app, arguments), daemon=True)
    process.start()
    child_pipe.close()  # a server that dies first then raises EOFError here instead of blocking
    try:
        url = parent_pipe.recv()
        with PolicyClient(url) as client:
            client.wait_ready(timeout_s)
        yield url, process.pid
    finally:
        process.terminate()
        process.join()


def _serve(pipe, make_app: Callable, arguments: tuple) -> None:
    import uvicorn

    from vla_contract.server.serving import address, listen, uvicorn_config

    app = make_app(*arguments)
    with listen("127.0.0.1", 0) as listener:
        pipe.send(address(listener))
        uvicorn.Server(uvicorn_config(app, "warning")).run(sockets=[listener])


def run(command: list[str], env: dict[str, str]) -> None:
    """Run a program to its end, from the repository's root. Raises RuntimeError with its output if it fails."""
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


@contextmanager
def program(
    log: Path, python: str | Path, *arguments: str, ready_text: str = "listening on", **variables: str
) -> Iterator[str]:
    """Run `python -m ARGUMENTS --port 0`; yield the URL that it prints. Raises RuntimeError if it prints none."""
    command, env = [str(python), "-m", *arguments, "--port", "0"], {**VARIABLES, **variables}
    with open(log, "w") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=output, stderr=output)
    try:
        end = time.monotonic() + 300.0
        while not (match := re.search(rf"{ready_text} (http://[\w.:]+)", log.read_text())):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{arguments[0]} did not start:\n{log.read_text()}")
            time.sleep(0.1)
        yield match[1]
    finally:
        process.terminate()
        process.wait()
