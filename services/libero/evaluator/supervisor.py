"""Keeps a run's workers alive: starts them, replaces the dead and the stuck, ends them cleanly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from services.libero.evaluator.store import RunStore
from services.libero.evaluator.worker import FATAL

GRACE_S = 20.0  # between SIGTERM and SIGKILL: long enough to save a result
LAST_VIDEO_S = 300.0
BROKEN_LIMIT = 3  # episodes out of tries before the whole run stops
DEATHS_IN_A_ROW = 3  # per worker, without any episode finishing in between
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS")


class RunFailed(Exception):
    """The run cannot go on; finished episodes are safe and it can be resumed."""


@dataclass
class Child:
    """One worker process and where its output goes."""

    name: str
    process: subprocess.Popen
    log: Path

    def last_words(self) -> str:
        """Returns the last line of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return lines[-1].strip() if lines else "it left no message"


class Supervisor:
    """The workers of one session."""

    def __init__(self, folder: Path, store: RunStore, session: int, workers: int, retries: int, token: str | None):
        self.folder, self.store, self.session, self.retries = folder, store, session, retries
        self.environment = {**os.environ, **{name: "1" for name in ONE_THREAD}, "LP_NUM_THREADS": "0"}
        if token:
            self.environment["VLALAB_TOKEN"] = token
        self.children: dict[str, Child] = {}
        self.names = [f"worker-{number}" for number in range(workers)]
        self.deaths, self.done_at_death = 0, 0
        self.done_at: float | None = None  # when the last episode was found done
        self.counts = store.counts()  # as of the last step

    def start(self) -> None:
        for name in self.names:
            self.spawn(name)

    def spawn(self, name: str) -> None:
        """Starts one worker, away from the terminal's process group: Ctrl-C is for the evaluator alone."""
        log = self.folder / "logs" / f"{name}.log"
        command = [
            sys.executable,
            "-m",
            "services.libero.evaluator.worker",
            str(self.folder),
            name,
            str(self.session),
            str(os.getpid()),
        ]
        with open(log, "ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment,
                start_new_session=True,
            )
        self.children[name] = Child(name, process, log)

    def step(self, now: float) -> list[str]:
        """Looks after the workers once and returns what happened, in words; RunFailed where nothing can be done."""
        news = []
        for fault in self.store.expire(now, self.retries):
            news.append(f"{fault.worker} is stuck in task {fault.task} episode {fault.episode}; replacing it")
            if fault.worker in self.children:
                self.children[fault.worker].process.kill()
        for child in list(self.children.values()):
            code = child.process.poll()
            if code is not None:
                news += self.bury(child, code, now)
        self.counts = self.store.counts()
        self.check_broken()
        return news

    def bury(self, child: Child, code: int, now: float) -> list[str]:
        """Takes a dead worker's episode back and starts a successor if there is work for it."""
        del self.children[child.name]
        if code == FATAL:
            raise RunFailed(child.last_words().removeprefix("stop: "))
        if code == 0:
            if work_left(self.store.counts()):
                self.spawn(child.name)
            return []
        reason = f"{child.name} {how_it_ended(code)}"
        detail = "" if code < 0 else f": {child.last_words()}"
        lost = self.store.take_back(child.name, now, self.retries, reason + detail)
        self.count_death(reason + detail)
        where = "".join(f" in task {fault.task} episode {fault.episode}" for fault in lost)
        if not work_left(self.store.counts()):
            return [f"{reason}{where}{detail}"]
        self.spawn(child.name)
        return [f"{reason}{where}{detail}; starting another"]

    def count_death(self, reason: str) -> None:
        done = sum(row["done"] for row in self.store.counts().values())
        self.deaths = 1 if done > self.done_at_death else self.deaths + 1
        self.done_at_death = done
        if self.deaths > DEATHS_IN_A_ROW * len(self.names):
            logs = self.folder / "logs"
            raise RunFailed(f"workers keep dying ({self.deaths} in a row); the last: {reason}; logs: {logs}")

    def check_broken(self) -> None:
        broken = sum(row["broken"] for row in self.counts.values())
        if broken >= BROKEN_LIMIT or (broken and not work_left(self.counts)):
            last = self.store.faults(self.session)[-1]
            raise RunFailed(
                f"{broken} episode{'s' if broken > 1 else ''} could not be run in {self.retries + 1} tries each; "
                f"the last error, in task {last.task} episode {last.episode}: {last.error}"
            )

    def finished(self) -> bool:
        """Returns whether all is done and every worker has ended, or had time enough to draw its last video."""
        if work_left(self.counts):
            return False
        self.done_at = self.done_at or time.monotonic()
        return not self.children or time.monotonic() - self.done_at > LAST_VIDEO_S

    def stop(self) -> None:
        """Ends the workers: asks first, kills what does not end in time."""
        for child in self.children.values():
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        for child in self.children.values():
            try:
                child.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
        self.children.clear()

    def kill(self) -> None:
        """Ends the workers at once."""
        for child in self.children.values():
            child.process.kill()


def work_left(counts: dict[int, dict[str, int]]) -> bool:
    return any(row["pending"] or row["leased"] for row in counts.values())


def how_it_ended(code: int) -> str:
    """Returns an exit status in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    hint = " (out of memory? try fewer --workers)" if -code == signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-code).name}{hint}"
