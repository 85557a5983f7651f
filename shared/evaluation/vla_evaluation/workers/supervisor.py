"""Keeps a run's workers alive: starts them, replaces the dead and the stuck, ends them cleanly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vla_common import memory
from vla_common.counts import plural
from vla_evaluation.coordinator.remote import RemoteStore
from vla_evaluation.store.records import Fault, Lease
from vla_evaluation.store.runstore import RunStore
from vla_evaluation.workers.clock import InvocationClock
from vla_evaluation.workers.growth import Growth
from vla_evaluation.workers.vitals import Phase, Vitals
from vla_evaluation.workers.worker import FATAL, STOP

GRACE_S = 20.0  # between SIGTERM and SIGKILL: long enough to save a result
UNKILLABLE_S = 10.0  # after SIGKILL: a process that a driver holds in the kernel stays
SECOND_LOOK_S = 1.0  # a worker that was paused together with its supervisor moves on at once
BROKEN_LIMIT = 3  # episodes out of tries before the whole run stops
DEATHS_IN_A_ROW = 3  # per worker, without any episode finishing in between
MOST_DRAWING = 4  # threads of one worker
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS")


class RunFailed(Exception):
    """The run cannot go on; finished episodes are safe and it can be resumed."""


@dataclass(frozen=True)
class Patience:
    """How often an episode is tried again, and how long a worker may stay silent in it and take to start."""

    retries: int
    lease_s: float
    start_timeout_s: float


@dataclass
class Child:
    """One worker process, what it shows of itself, and where its output goes."""

    name: str
    process: subprocess.Popen
    vitals: Vitals
    log: Path
    begin: int = 0  # of what it writes into its log, in bytes: those before it in its place wrote there too
    suspected: float | None = None  # when it was first found stuck (monotonic, s)
    killed: float | None = None
    why_killed: str = ""

    def last_words(self) -> str:
        """Returns the last line of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return lines[-1].strip() if lines else "it left no message"

    def why_it_gave_up(self) -> str:
        """Returns what a worker said that ended with FATAL."""
        said = self.log.read_bytes()[self.begin :].decode(errors="replace").splitlines() if self.log.exists() else []
        for line in said:  # what libraries say at their end comes behind it
            if line.startswith(STOP):
                return line.removeprefix(STOP).strip()
        return f"{self.name} gave up, and why could not be written to {self.log}: free some space there, then resume"

    def kill_if_stuck(self, silence_s: float) -> None:
        """Kills it where two looks find it stuck, and remembers why."""
        problem, now = self.vitals.stuck(silence_s), time.monotonic()
        if problem is None or self.killed is not None:
            self.suspected = None
            return
        self.suspected = self.suspected or now
        if now - self.suspected >= SECOND_LOOK_S:
            self.killed, self.why_killed = now, f"{self.name} {problem}; ended it"
            self.process.kill()

    @property
    def is_gone(self) -> bool:
        """Whether nothing more is to be expected of it."""
        if self.process.poll() is not None:
            return True
        return self.killed is not None and time.monotonic() - self.killed > UNKILLABLE_S

    def how_it_ended(self) -> str:
        """Returns its end in words, with its last ones where it ended by itself."""
        code = self.process.poll()
        if code is None:
            return f"{self.why_killed}, but the kernel holds it"
        if self.why_killed:
            return self.why_killed
        return f"{self.name} {exit_in_words(code)}" + ("" if code < 0 else f": {self.last_words()}")


def one_thread_each(environ: Mapping[str, str], drawing: int = 1) -> dict[str, str]:
    """Returns the variables of a worker: it computes in one thread, draws in so many, unless `environ` says otherwise.

    Mesa's llvmpipe draws the same pixels with any number; 0 is how it is told to use no thread but the caller's.
    """
    threads = str(min(drawing, MOST_DRAWING)) if drawing > 1 else "0"
    return {"LP_NUM_THREADS": threads, **{name: "1" for name in ONE_THREAD}, **environ}


class Supervisor:
    """The workers of one invocation."""

    def __init__(
        self,
        folder: Path,
        store: RunStore | RemoteStore,
        invocation: int,
        clock: InvocationClock,
        names: Sequence[str],
        patience: Patience,
        wanted: Callable[[bool, int], bool],
        token: str | None,
        variables: Callable[[int], dict[str, str]],
        worker: str,
        growth: Growth | None = None,
        drawing: int = 1,
    ):
        self.folder, self.store, self.invocation, self.clock, self.patience = folder, store, invocation, clock, patience
        self.wanted = wanted  # which videos, by outcome and place
        self.variables = variables  # of a worker, by its number
        self.worker = worker  # the module that is one
        self.environment = one_thread_each(os.environ, drawing)
        if token:
            self.environment["VLALAB_TOKEN"] = token
        self.children: dict[str, Child] = {}
        self.names = list(names)  # of the workers, in the run: no other machine has the same
        self.growth = growth  # None: there are as many as there are
        self.deaths, self.done_at_death = 0, 0
        self.oom_kills = memory.oom_kills()  # as of the last worker that was lost to one
        self.renewed = time.monotonic()
        self.renewed_at_step: dict[str, int] = {}  # by a lease's token: what the store knows of its episode
        self.counts = store.counts()  # as of the last step

    def start(self) -> None:
        for name in self.names:
            self.spawn(name)

    def spawn(self, name: str) -> None:
        """Starts one worker, away from the terminal's process group: Ctrl-C is for the evaluator alone."""
        log = self.folder / "logs" / f"{name}.log"
        vitals, handle = Vitals.create()
        vitals.enter(Phase.STARTING, self.patience.start_timeout_s)
        command = [sys.executable, "-m", self.worker, str(self.folder), name]
        command += [str(self.invocation), str(os.getpid()), repr(self.clock.offset_s), str(handle)]
        try:
            with open(log, "ab") as output:
                begin = output.tell()  # the child moves it
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**self.environment, **self.variables(self.names.index(name))},
                    start_new_session=True,
                    pass_fds=(handle,),
                )
        finally:
            os.close(handle)
        self.children[name] = Child(name, process, vitals, log, begin)

    def step(self) -> list[str]:
        """Looks after the workers once and returns what happened, in words; RunFailed where nothing can be done."""
        news = []
        for child in list(self.children.values()):
            child.kill_if_stuck(self.patience.lease_s)
            if child.is_gone:
                news += self.bury(child)
        leases = self.store.leases()
        self.renew(leases)
        for fault in self.store.expire(self.clock.now(), self.patience.retries):
            news.append(f"the lease of task {fault.task} episode {fault.episode} ran out")
        self.counts = self.store.counts()
        self.count_live_steps(leases)
        self.check_broken()
        return news + self.grow()

    def grow(self) -> list[str]:
        """Starts one more worker where it has something to do; returns why, in words."""
        why = self.growth.why(self.store, self.invocation, len(self.names)) if self.growth else ""
        if not why:
            return []
        self.names.append(worker_names(len(self.names) + 1)[-1])
        self.spawn(self.names[-1])
        self.store.note(self.invocation, {"workers": len(self.names)})
        return [why]

    def count_live_steps(self, leases: Mapping[str, Lease]) -> None:
        """Adds to the counts the steps that workers have taken since the store was last told of them."""
        for name, lease in leases.items():
            if (child := self.children.get(name)) and lease.task in self.counts:
                known = self.renewed_at_step.get(lease.token, 0)
                self.counts[lease.task]["steps"] += max(0, child.vitals.steps - known)

    def renew(self, leases: Mapping[str, Lease]) -> None:
        """Renews the leases of the workers that move on, and notes how far they are."""
        if time.monotonic() - self.renewed < self.patience.lease_s / 6:
            return
        self.renewed = time.monotonic()
        self.renewed_at_step.clear()
        for name, lease in leases.items():
            child = self.children.get(name)
            if child is not None and child.killed is None:
                steps = self.renewed_at_step[lease.token] = child.vitals.steps
                self.store.heartbeat(lease, self.clock.now(), self.patience.lease_s, steps)

    def bury(self, child: Child) -> list[str]:
        """Takes a dead worker's episode back and starts a successor if there is work for it."""
        del self.children[child.name]
        code = child.process.poll()
        if code == FATAL:
            raise RunFailed(child.why_it_gave_up())
        if code == 0:
            if episodes_left(self.store.counts()):
                self.spawn(child.name)
            return []
        reason = child.how_it_ended()
        lost = self.store.take_back(child.name, self.clock.now(), self.patience.retries, reason)
        news = reason + in_episode(lost)
        if not episodes_left(self.store.counts()) and not self.store.undrawn(self.invocation, self.wanted):
            return [news]
        if self.children and lost_to_memory(child) and self.has_memory_run_out():
            return [f"{news}; {self.go_on_with_fewer()}"]
        self.count_death(reason)
        self.spawn(child.name)
        return [f"{news}; starting another"]

    def has_memory_run_out(self) -> bool:
        """Returns whether the kernel has ended a process of this machine for want of memory, and not been told of."""
        before, self.oom_kills = self.oom_kills, memory.oom_kills()
        return self.oom_kills > before

    def go_on_with_fewer(self) -> str:
        """Leaves the place of a worker empty and starts no more than there are; returns what that means, in words."""
        self.growth = None
        if isinstance(self.store, RunStore):  # the pace that an estimate is made of; a machine that joined has none
            self.store.note(self.invocation, {"workers": len(self.children)})
        return f"memory ran out: {plural(len(self.children), 'worker')} from now on"

    def count_death(self, reason: str) -> None:
        done = sum(row["done"] for row in self.store.counts().values())
        self.deaths = 1 if done > self.done_at_death else self.deaths + 1
        self.done_at_death = done
        if self.deaths > DEATHS_IN_A_ROW * len(self.names):
            logs = self.folder / "logs"
            raise RunFailed(f"workers keep dying ({self.deaths} in a row); the last: {reason}; logs: {logs}")

    def check_broken(self) -> None:
        broken = sum(row["broken"] for row in self.counts.values())
        if broken >= BROKEN_LIMIT or (broken and not episodes_left(self.counts)):
            last = self.store.faults(self.invocation)[-1]
            raise RunFailed(
                f"{broken} episode{'s' if broken > 1 else ''} could not be run in {self.patience.retries + 1} tries "
                f"each; the last error, in task {last.task} episode {last.episode}: {last.error}"
            )

    def finished(self) -> bool:
        """Returns whether all is done and every worker has ended; one that draws the last video is waited for."""
        return not episodes_left(self.counts) and not self.children

    def stop(self) -> None:
        """Ends the workers: asks first, kills what does not end in time."""
        for child in self.children.values():
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        for child in self.children.values():
            if not ends_within(child.process, deadline - time.monotonic()):
                child.process.kill()
        for child in self.children.values():
            ends_within(child.process, UNKILLABLE_S)
        self.children.clear()

    def kill(self) -> None:
        """Ends the workers at once."""
        for child in self.children.values():
            child.process.kill()


def lost_to_memory(child: Child) -> bool:
    """Returns whether a worker ended as one does that the kernel ends for want of memory."""
    return child.process.poll() == -signal.SIGKILL and child.killed is None


def worker_names(count: int, machine: str = "") -> list[str]:
    """Returns the names of a machine's workers; the one that holds the run needs none of its own."""
    return [f"{machine}.worker-{number}" if machine else f"worker-{number}" for number in range(count)]


def episodes_left(counts: dict[int, dict[str, int]]) -> bool:
    return any(row["pending"] or row["leased"] for row in counts.values())


def in_episode(lost: list[Fault]) -> str:
    return "".join(f" in task {fault.task} episode {fault.episode}" for fault in lost)


def ends_within(process: subprocess.Popen, seconds: float) -> bool:
    try:
        process.wait(max(0.1, seconds))
    except subprocess.TimeoutExpired:
        return False
    return True


def exit_in_words(code: int) -> str:
    """Returns an exit status in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    hint = " (out of memory? try fewer --workers)" if -code == signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-code).name}{hint}"
