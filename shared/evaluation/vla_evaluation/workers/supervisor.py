"""Start a run's workers, replace dead and stuck ones, and stop them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vla_common import memory
from vla_common.counts import plural
from vla_evaluation import provenance
from vla_evaluation.store.reading import StoreReader
from vla_evaluation.store.records import Counts, Lease, total
from vla_evaluation.store.remote import Store
from vla_evaluation.store.runstore import RunStore
from vla_evaluation.workers.heartbeat import Phase, WorkerHeartbeat
from vla_evaluation.workers.job import InvocationClock
from vla_evaluation.workers.worker import FATAL, STOP

GRACE_S = 20.0  # between SIGTERM and SIGKILL: long enough to save a result
UNKILLABLE_S = 10.0  # after SIGKILL: a process that a driver holds in the kernel stays
SECOND_LOOK_S = 1.0  # a worker that was paused together with its supervisor continues at once
MAX_BROKEN = 3  # episodes out of tries before the whole run stops
MAX_DEATHS = 3  # per worker, without any episode finishing in between
MAX_RENDER_THREADS = 4  # of one worker
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
GROWTH_INTERVAL_S = 60.0  # the kernel's shortest load average is of a minute
MAX_PER_CORE = 4  # workers


class RunFailed(Exception):
    """The run cannot continue; finished episodes are stored and it can be resumed."""


@dataclass(frozen=True)
class StallPolicy:
    """Retries of an episode, and the timeouts of a worker: without a heartbeat, and at its start."""

    retries: int
    lease_s: float
    start_timeout_s: float


@dataclass
class Growth:
    """Decides when to add a worker: one that waits for the policy leaves its core idle."""

    worker_gb: float  # memory of one worker
    checked: float = field(default_factory=time.monotonic)

    def reason(self, store: StoreReader, invocation: int, workers: int) -> str:
        """Return why one more worker should start; "" where none should, or it is too early to say.

        The machine's load has to leave a core for the part of its time in which a worker does not wait. A policy at
        which requests wait longer than inference takes is busy enough.
        """
        if time.monotonic() - self.checked < GROWTH_INTERVAL_S:
            return ""
        self.checked = time.monotonic()
        spent, cores = store.spent(invocation), provenance.cores()
        if not spent["total"] or spent["server_queue"] > spent["server_infer"] or workers >= MAX_PER_CORE * cores:
            return ""
        waiting = min(1.0, spent["policy"] / spent["total"])
        if os.getloadavg()[0] + 1 - waiting > cores or not total(store.counts(), "pending"):
            return ""
        if provenance.free_memory_gb() < 2 * self.worker_gb:
            return ""
        return (
            f"workers wait for the policy {waiting:.0%} of their time, and cores are idle: using {workers + 1} workers"
        )


@dataclass
class Child:
    """One worker process, its heartbeat, and its log."""

    name: str
    process: subprocess.Popen
    heartbeat: WorkerHeartbeat
    log: Path
    log_start: int = 0  # bytes of earlier workers of that name
    stalled_since: float | None = None  # monotonic, s
    killed: float | None = None
    kill_reason: str = ""

    def last_line(self) -> str:
        """Return the last line of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return lines[-1].strip() if lines else "no log output"

    def fatal_message(self) -> str:
        """Return the message of a worker that ended with FATAL."""
        lines = (
            self.log.read_bytes()[self.log_start :].decode(errors="replace").splitlines() if self.log.exists() else []
        )
        for line in lines:  # libraries may log after it
            if line.startswith(STOP):
                return line.removeprefix(STOP).strip()
        return f"{self.name} stopped, and its reason could not be written to {self.log}; free some space, then resume"

    def kill_if_stuck(self, silence_s: float) -> None:
        """Kill the process if two checks find it stuck."""
        problem, now = self.heartbeat.stall(silence_s), time.monotonic()
        if problem is None or self.killed is not None:
            self.stalled_since = None
            return
        self.stalled_since = self.stalled_since or now
        if now - self.stalled_since >= SECOND_LOOK_S:
            self.killed, self.kill_reason = now, f"{self.name} {problem} and was killed"
            self.process.kill()

    @property
    def is_gone(self) -> bool:
        if self.process.poll() is not None:
            return True
        return self.killed is not None and time.monotonic() - self.killed > UNKILLABLE_S

    def exit_message(self) -> str:
        code = self.process.poll()
        if code is None:
            return f"{self.kill_reason}, but the kernel does not release it"
        if self.kill_reason:
            return self.kill_reason
        if code < 0:
            hint = " (out of memory? try fewer --workers)" if code == -signal.SIGKILL else ""
            return f"{self.name} was killed by {signal.Signals(-code).name}{hint}"
        return f"{self.name} ended with exit code {code}: {self.last_line()}"

    @property
    def was_killed_by_kernel(self) -> bool:
        """Whether it ended like a process that the kernel kills for lack of memory."""
        return self.process.poll() == -signal.SIGKILL and self.killed is None


def thread_environment(environ: Mapping[str, str], render_threads: int = 1) -> dict[str, str]:
    """Return a worker's variables: one compute thread and `render_threads` threads, unless `environ` sets others.

    Mesa's llvmpipe renders the same pixels with any number; 0 means no thread but the caller's.
    """
    threads = str(min(render_threads, MAX_RENDER_THREADS)) if render_threads > 1 else "0"
    return {"LP_NUM_THREADS": threads, **{name: "1" for name in THREAD_VARIABLES}, **environ}


class WorkerSupervisor:
    """The workers of one invocation."""

    def __init__(
        self,
        directory: Path,
        store: Store,
        invocation: int,
        clock: InvocationClock,
        names: Sequence[str],
        limits: StallPolicy,
        wants_video: Callable[[bool, int], bool],
        token: str | None,
        variables: Callable[[int], dict[str, str]],
        worker: str,
        growth: Growth | None = None,
        render_threads: int = 1,
    ):
        self.directory, self.store, self.invocation, self.clock, self.limits = (
            directory,
            store,
            invocation,
            clock,
            limits,
        )
        self.wants_video = wants_video  # which videos, by outcome and rank
        self.variables = variables  # of a worker, by its number
        self.worker = worker  # the worker's module
        self.environment = thread_environment(os.environ, render_threads)
        if token:
            self.environment["VLALAB_TOKEN"] = token
        self.children: dict[str, Child] = {}
        self.names = list(names)  # of the workers, unique in the run
        self.growth = growth  # None: the number of workers is fixed
        self.deaths, self.done_at_death = 0, 0
        self.oom_kills = memory.oom_kills()
        self.renewed = time.monotonic()
        self.steps_at_renewal: dict[str, int] = {}  # by lease token: the steps that the store knows of
        self.counts = store.counts()  # as of the last step

    def start(self) -> None:
        for name in self.names:
            self.spawn(name)

    def spawn(self, name: str) -> None:
        """Start one worker, outside the terminal's process group: Ctrl-C is for the evaluator alone."""
        log = self.directory / "logs" / f"{name}.log"
        heartbeat, handle = WorkerHeartbeat.create()
        heartbeat.enter(Phase.STARTING, self.limits.start_timeout_s)
        command = [sys.executable, "-m", self.worker, str(self.directory), name]
        command += [str(self.invocation), str(os.getpid()), repr(self.clock.offset_s), str(handle)]
        try:
            with open(log, "ab") as output:
                log_start = output.tell()  # the child moves it
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
        self.children[name] = Child(name, process, heartbeat, log, log_start)

    def step(self) -> list[str]:
        """Check the workers once; return messages about changes. RunFailed if the run cannot continue."""
        messages = []
        for child in list(self.children.values()):
            child.kill_if_stuck(self.limits.lease_s)
            if child.is_gone:
                messages += self.replace(child)
        leases = self.store.leases()
        self.renew(leases)
        for fault in self.store.expire(self.clock.now(), self.limits.retries):
            messages.append(f"the lease of task {fault.task} episode {fault.episode} expired")
        self.counts = self.store.counts()
        for name, lease in leases.items():  # steps since the store was last updated
            if (child := self.children.get(name)) and lease.task in self.counts:
                stored = self.steps_at_renewal.get(lease.token, 0)
                self.counts[lease.task]["steps"] += max(0, child.heartbeat.steps - stored)
        self.check_broken()
        return messages + self.grow()

    def renew(self, leases: Mapping[str, Lease]) -> None:
        """Renew the leases of active workers, and store their steps."""
        if time.monotonic() - self.renewed < self.limits.lease_s / 6:
            return
        self.renewed = time.monotonic()
        self.steps_at_renewal.clear()
        for name, lease in leases.items():
            child = self.children.get(name)
            if child is not None and child.killed is None:
                steps = self.steps_at_renewal[lease.token] = child.heartbeat.steps
                self.store.heartbeat(lease, self.clock.now(), self.limits.lease_s, steps)

    def grow(self) -> list[str]:
        """Start one more worker if that helps; return the reason."""
        reason = self.growth.reason(self.store, self.invocation, len(self.names)) if self.growth else ""
        if not reason:
            return []
        self.names.append(worker_names(len(self.names) + 1)[-1])
        self.spawn(self.names[-1])
        self.store.note(self.invocation, {"workers": len(self.names)})
        return [reason]

    def replace(self, child: Child) -> list[str]:
        """Return a dead worker's episode to the store; start a successor if there is work."""
        del self.children[child.name]
        code = child.process.poll()
        if code == FATAL:
            raise RunFailed(child.fatal_message())
        if code == 0:
            if has_work(self.store.counts()):
                self.spawn(child.name)
            return []
        reason = child.exit_message()
        lost = self.store.take_back(child.name, self.clock.now(), self.limits.retries, reason)
        message = reason + "".join(f" in task {fault.task} episode {fault.episode}" for fault in lost)
        if not has_work(self.store.counts()) and not self.store.missing_videos(self.invocation, self.wants_video):
            return [message]
        if self.children and child.was_killed_by_kernel and self.ran_out_of_memory():
            return [f"{message}; {self.continue_with_fewer()}"]
        self.count_death(reason)
        self.spawn(child.name)
        return [f"{message}; starting another"]

    def ran_out_of_memory(self) -> bool:
        """Return whether the kernel has killed a process of this machine for lack of memory since the last call."""
        before, self.oom_kills = self.oom_kills, memory.oom_kills()
        return self.oom_kills > before

    def continue_with_fewer(self) -> str:
        """Keep the current number of workers; return the message."""
        self.growth = None
        if isinstance(self.store, RunStore):  # for estimates of later runs; a machine that joined makes none
            self.store.note(self.invocation, {"workers": len(self.children)})
        return f"out of memory: continuing with {plural(len(self.children), 'worker')}"

    def count_death(self, reason: str) -> None:
        done = total(self.store.counts(), "done")
        self.deaths = 1 if done > self.done_at_death else self.deaths + 1
        self.done_at_death = done
        if self.deaths > MAX_DEATHS * len(self.names):
            logs = self.directory / "logs"
            raise RunFailed(f"workers keep failing ({self.deaths} in a row); the last: {reason}; logs: {logs}")

    def check_broken(self) -> None:
        broken = total(self.counts, "broken")
        if broken >= MAX_BROKEN or (broken and not has_work(self.counts)):
            last = self.store.faults(self.invocation)[-1]
            raise RunFailed(
                f"{plural(broken, 'episode')} could not be run in {self.limits.retries + 1} tries "
                f"each; the last error, in task {last.task} episode {last.episode}: {last.error}"
            )

    def finished(self) -> bool:
        """Return whether no work is left and every worker, also one that renders a video, has ended."""
        return not has_work(self.counts) and not self.children

    def stop(self) -> None:
        """Stop the workers with SIGTERM, after GRACE_S with SIGKILL."""
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
        """Kill the workers at once."""
        for child in self.children.values():
            child.process.kill()


def worker_names(count: int, machine: str = "") -> list[str]:
    """Return the names of a machine's workers; the evaluator's own have no prefix."""
    return [f"{machine}.worker-{number}" if machine else f"worker-{number}" for number in range(count)]


def has_work(counts: Counts) -> bool:
    return any(row["pending"] or row["leased"] for row in counts.values())


def ends_within(process: subprocess.Popen, seconds: float) -> bool:
    try:
        process.wait(max(0.1, seconds))
    except subprocess.TimeoutExpired:
        return False
    return True
