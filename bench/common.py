"""The harness of every benchmark: time its sides in turns, print tables and FIGURE lines, run the programs of a side.

The module imports the standard library only; some of its functions import packages of the benchmark's environment.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import operator
import os
import random
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

COMPARE = {">=": operator.ge, "<=": operator.le}
ROOT = Path(__file__).resolve().parents[1]
SHARED = ("common", "contract", "modelkit", "evaluation", "datasets", "fast_libero")
PYTHON_PATH = os.pathsep.join(map(str, (ROOT, *(ROOT / "shared" / name for name in SHARED))))
VARIABLES = {**os.environ, "PYTHONPATH": PYTHON_PATH}
SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
missed: list[str] = []  # names of the figures that missed their targets


def flags(description: str, quick: str) -> argparse.ArgumentParser:
    """Return a parser with --quick, whose help is `quick`."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, formatter_class=form, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help=quick)
    return parser


# --- two sides in turns -------------------------------------------------------------------------------------


class Timings(dict[str, list[float]]):
    """Seconds per call of each side, round by round."""

    def ms(self, side: str) -> float:
        """Return the median of a side in milliseconds."""
        return statistics.median(self[side]) * 1e3

    def ratio(self, slow: str, fast: str) -> float:
        """Return the ratio of two sides' times: the median over the rounds."""
        return statistics.median(a / b for a, b in zip(self[slow], self[fast], strict=True))


def interleaved(
    sides: Mapping[str, Callable[[], object]],
    rounds: int,
    title: str = "",
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    before: Callable[[], object] = lambda: None,
    calls: int = 1,
) -> Timings:
    """Time every side once per round, in random order: a busy machine slows all of them equally.

    The order is random because a side runs faster after one that leaves the processor cool.

    Args:
        title: of the table to print, in which ratios are of the first side over each; "": print none.
        clock: `time.process_time` for sides that compute only in this process.
        before: called before every side, untimed.
        calls: the number of steps per call of a side; the seconds are per step.
    """
    for _ in range(warmup):
        for side in sides.values():
            before()
            side()
    seconds = Timings({name: [] for name in sides})
    rng = random.Random(0)
    for _ in range(rounds):
        for name in rng.sample(list(sides), len(sides)):
            before()
            start = clock()
            sides[name]()
            seconds[name].append((clock() - start) / calls)
    if title:
        print(f"\n{title}: medians of {rounds} alternating rounds")
        width, first = max(map(len, sides)), next(iter(sides))
        for name, values in seconds.items():
            p10, p90 = (1e3 * sorted(values)[int(share * (rounds - 1))] for share in (0.1, 0.9))
            ratio = seconds.ratio(first, name)
            print(f"  {name:{width}} {seconds.ms(name):10.3f} ms   p10 {p10:10.3f}   p90 {p90:10.3f}   {ratio:7.2f} x")
    return seconds


def replace_attributes(owner: object, **values: object) -> None:
    """Set existing attributes of `owner`. Raises AttributeError for a missing one: both sides would be the same."""
    for name, value in values.items():
        getattr(owner, name)
        setattr(owner, name, value)


def figure(name: str, value: float, unit: str, target: str, quick: bool = False) -> bool:
    """Print a result as its FIGURE line and return whether it meets the target, such as ">=1.35" ("none": always).

    quick: the target also holds with --quick, which measures the same in fewer rounds; otherwise --quick has no target.
    """
    if "--quick" in sys.argv[1:] and not quick:
        target = "none"
    print(f"FIGURE name={name} value={value:.4g} unit={unit} target={target}", flush=True)
    missed.extend([] if is_met(value, target) else [name])
    return is_met(value, target)


def is_met(value: float, target: str) -> bool:
    """Return whether a value meets a target such as "<=45"; "none": always."""
    return target == "none" or COMPARE[target[:2]](value, float(target[2:]))


def make_environment(directory: Path, name: str, *packages: str) -> Path:
    """Make an environment from the lock of the lab's environment `name` and further packages; return its Python.

    Raises CalledProcessError if an install fails.
    """
    python, uv, lock = directory / "bin" / "python", ROOT / ".venv/bin/uv", ROOT / "images" / name / "requirements.lock"
    install = (uv, "pip", "install", "-q", "--python", python)
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, directory], check=True)
    subprocess.run([uv, "pip", "sync", "-q", "--require-hashes", "--python", python, lock], check=True)
    subprocess.run([*install, *packages], check=True)
    return python


# --- programs -----------------------------------------------------------------------------------------------


def run(command: Iterable[object], env: dict[str, str]) -> None:
    """Run a program to its end, from the repository's root. Raises RuntimeError with its output if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


@contextlib.contextmanager
def program(
    log: Path, python: str | Path, *arguments: str, ready_text: str = "listening on", **variables: str
) -> Iterator[str]:
    """Run `python -m ARGUMENTS --port 0`; yield the URL that it prints. Raises RuntimeError if it prints none."""
    command, env = [str(python), "-m", *arguments, "--port", "0"], {**VARIABLES, **variables}
    with open(log, "w") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=output, stderr=output)
    try:
        end = time.monotonic() + 300.0
        while not (match := re.search(rf"{ready_text} ((?:http|ws)://[\w.:]+)", log.read_text())):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{arguments[0]} did not start:\n{log.read_text()}")
            time.sleep(0.1)
        yield match[1]
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def served(make_app: Callable[..., Any], *arguments: object, timeout_s: float = 60.0) -> Iterator[str]:
    """Serve `make_app(*arguments)` in a child process; yield its URL once it is ready."""
    from vla_contract import PolicyClient

    context = multiprocessing.get_context("spawn")
    parent_pipe, child_pipe = context.Pipe()
    process = context.Process(target=_serve, args=(child_pipe, make_app, arguments), daemon=True)
    process.start()
    child_pipe.close()  # a server that dies first then raises EOFError here instead of blocking
    try:
        url = str(parent_pipe.recv())
        with PolicyClient(url) as client:
            client.wait_ready(timeout_s)
        yield url
    finally:
        process.terminate()
        process.join()


def _serve(pipe: Any, make_app: Callable[..., Any], arguments: tuple[object, ...]) -> None:
    import uvicorn

    from vla_contract.server.serving import address, listen, uvicorn_config

    app = make_app(*arguments)
    with listen("127.0.0.1", 0) as listener:
        pipe.send(address(listener))
        uvicorn.Server(uvicorn_config(app, "warning")).run(sockets=[listener])


class ProcessorTime(threading.Thread):
    """Records every 0.2 s the processor time of all processes that this one started, inside a `with` block."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.samples: list[tuple[float, float]] = []  # time (s since the epoch), processor time (s)
        self._stopped = threading.Event()

    def run(self) -> None:
        import psutil

        while not self._stopped.wait(0.2):
            total = 0.0
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    total += sum(process.cpu_times()[:4])  # its own, and that of its ended children
            self.samples.append((time.time(), total))

    def __enter__(self) -> ProcessorTime:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        self.join()

    def steady_state(self, ended: Iterable[tuple[str, float, int]]) -> tuple[float, float]:
        """Return units per second and processor time (s) per unit, from each worker's first episode on.

        ended: each episode's worker, end (s since the epoch) and units of work. A worker's first episode is not
        counted: it includes start-up. So a worker with a single one does not count.
        """
        import numpy as np

        by_worker: dict[str, list[tuple[float, int]]] = {}
        for worker, ended_at, units in ended:
            by_worker.setdefault(worker, []).append((ended_at, units))
        per_s, total, starts, ends = 0.0, 0, [], []
        for episodes in map(sorted, by_worker.values()):
            if len(episodes) > 1:
                units = sum(number for _, number in episodes[1:])
                starts.append(episodes[0][0])
                ends.append(episodes[-1][0])
                per_s += units / (ends[-1] - starts[-1])
                total += units
        used = np.interp([statistics.mean(starts), statistics.mean(ends)], *zip(*self.samples, strict=True))
        return per_s, float(used[1] - used[0]) / total
