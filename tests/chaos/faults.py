"""The faults: each is done to a stage at a moment that the seed chooses."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.processes import running, send
from tests.chaos.stage import SUPERVISOR, Stage

KILL, TERM, STOP, CONT = signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, signal.SIGCONT


@dataclass(frozen=True)
class Fault:
    """One fault: what, after how many episodes and how many seconds more, and how long it lasts where it lasts."""

    kind: str
    after: int
    delay_s: float
    lasts_s: float
    choice: int  # which of several targets

    def __str__(self) -> str:
        return f"{self.kind} (after {self.after} episodes + {self.delay_s:.2f} s, {self.lasts_s:.1f} s, #{self.choice})"

    def strike(self, stage: Stage) -> None:
        """Does it; afterwards the run either goes on or has ended and can be resumed."""
        time.sleep(self.delay_s)
        KINDS[self.kind](stage, self)


def _pick(pids: list[int], fault: Fault) -> list[int]:
    return [pids[fault.choice % len(pids)]] if pids else []


def _worker(number: signal.Signals) -> Callable[[Stage, Fault], None]:
    return lambda stage, fault: [send(pid, number) for pid in _pick(stage.workers(), fault)] and None


def _pause(pids: list[int], fault: Fault) -> None:
    for pid in pids:
        send(pid, STOP)
    time.sleep(fault.lasts_s)
    for pid in pids:
        send(pid, CONT)


def _policy(number: signal.Signals) -> Callable[[Stage, Fault], None]:
    def strike(stage: Stage, fault: Fault) -> None:
        for pid in stage.policies():
            send(pid, number)
        time.sleep(fault.lasts_s)
        stage.start_policy()  # with `./lab eval` its supervisor does that

    return strike


def _evaluator(number: signal.Signals) -> Callable[[Stage, Fault], None]:
    return lambda stage, fault: [send(pid, number) for pid in stage.evaluators()] and None


def _caller(number: signal.Signals) -> Callable[[Stage, Fault], None]:
    return lambda stage, fault: stage.send_caller(number)


def _supervisor(stage: Stage, fault: Fault) -> None:
    for pid in running(stage.mark, SUPERVISOR):
        send(pid, KILL)


def _clock(jumps: tuple[float, ...]) -> Callable[[Stage, Fault], None]:
    def strike(stage: Stage, fault: Fault) -> None:
        shift = 0.0
        for jump in jumps:
            shift += jump
            stage.set_clock(shift)
            time.sleep(fault.lasts_s / len(jumps))

    return strike


def _derived_damaged(stage: Stage, fault: Fault) -> None:
    """End the evaluator and cuts off or garbles everything that it can make again."""
    for pid in stage.evaluators():
        send(pid, KILL)
    for pattern in ("*.html", "summary.json", "*.jsonl", "logs/*"):
        for path in stage.directory.glob(pattern):
            damage(path, random.Random(fault.choice))


def damage(path: Path, draw: random.Random) -> None:
    """Cuts a file off, empties it, or writes noise somewhere into it."""
    data = bytearray(path.read_bytes())
    kind = draw.choice(("cut", "empty", "noise", "zeros"))
    if kind == "cut":
        data = data[: draw.randrange(len(data) + 1)]
    elif kind == "empty":
        data = bytearray()
    elif data:
        at, length = draw.randrange(len(data)), draw.randrange(1, 5000)
        data[at : at + length] = draw.randbytes(length) if kind == "noise" else bytes(length)
    path.write_bytes(data)


def _disk_full(stage: Stage, fault: Fault) -> None:
    """Fills the stage's file system; the evaluation stops or waits, then there is room again."""
    filler = stage.base / "filler"
    with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    with contextlib.suppress(Exception):
        deadline = time.monotonic() + 20
        while not stage.ended() and time.monotonic() < deadline:
            time.sleep(0.2)
    filler.unlink(missing_ok=True)


DISK = "the disk is full"
KINDS: dict[str, Callable[[Stage, Fault], None]] = {
    "a worker: SIGKILL": _worker(KILL),
    "a worker: SIGTERM": _worker(TERM),
    "a worker hangs: SIGSTOP": _worker(STOP),
    "a worker pauses: SIGSTOP, SIGCONT": lambda stage, fault: _pause(_pick(stage.workers(), fault), fault),
    "the policy: SIGKILL": _policy(KILL),
    "the policy: SIGTERM": _policy(TERM),
    "the policy pauses: SIGSTOP, SIGCONT": lambda stage, fault: _pause(stage.policies(), fault),
    "the evaluator: SIGKILL": _evaluator(KILL),
    "the evaluator: SIGTERM": _evaluator(TERM),
    "the evaluator: SIGINT": _evaluator(signal.SIGINT),
    "the evaluator: SIGHUP": _evaluator(signal.SIGHUP),
    "the evaluator pauses: SIGSTOP, SIGCONT": lambda stage, fault: _pause(stage.evaluators(), fault),
    "the clock: five jumps of 40 s": _clock((40.0,) * 5),
    "the clock: an hour back": _clock((-3600.0,)),
    "the clock: a day on and back": _clock((86400.0, -86400.0)),
    "report, summary and logs damaged": _derived_damaged,
    DISK: _disk_full,
}
LAB_KINDS: dict[str, Callable[[Stage, Fault], None]] = {
    "./lab eval: SIGKILL": _caller(KILL),
    "./lab eval: SIGTERM": _caller(TERM),
    "./lab eval: SIGINT": _caller(signal.SIGINT),
    "./lab eval's evaluator: SIGKILL": _evaluator(KILL),
    "./lab eval's policy: SIGKILL": _policy(KILL),
    "./lab eval's policy's supervisor: SIGKILL": _supervisor,
}
KINDS |= LAB_KINDS
