"""Start a run's workers, replace dead and stuck ones, and stop them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vla_common import memory
from vla_common.counts import plural
from vla_evaluation import provenance
from vla_evaluation.store.reading import StoreReader
from vla_evaluation.store.records import Counts, total
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
THREAD_VARIABLES = [f"{name}_NUM_THREADS" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "NUMBA")]
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
    process: subprocess.Popen[bytes]
    heartbeat: WorkerHeartbeat
    log: Path
    log_start: int = 0  # bytes of earlier workers of that name
    stalled_since: float | None = None  # monotonic, s
    killed: float | None = None
    kill_reason: str = ""

    def is_gone(self, silence_s: float) -> bool:
        """Return whether the process has ended, or does not end although it was killed; kill it if it is stuck."""
        problem, now = self.heartbeat.stall(silence_s), time.monotonic()
        if problem is None or self.killed is not None:
            self.stalled_since = None
        else:
            self.stalled_since = self.stalled_since or now
            if now - self.stalled_since >= SECOND_LOOK_S:
                self.killed, self.kill_reason = now, f"{self.name} {problem} and was killed"
                self.process.kill()
        if self.process.poll() is not None:
            return True
        return self.killed is not None and now - self.killed > UNKILLABLE_S

    def exit_message(self) -> str:
        """Return why a process that is gone has ended."""
        code = self.process.poll()
        if code is None:
            return f"{self.kill_reason}, but the kernel does not release it"
        if self.kill_reason:
            return self.kill_reason
        if code < 0:
            hint = " (out of memory? try fewer --workers)" if code == -signal.SIGKILL else ""
            return f"{self.name} was killed by {signal.Signals(-code).name}{hint}"
        log = self.log.read_bytes()[self.log_start :] if self.log.exists() else b""
        lines = log.decode(errors="replace").strip().splitlines()
        if code != FATAL:
            return f"{self.name} ended with exit code {code}: {lines[-1].strip() if lines else 'no log output'}"
        for line in lines:  # libraries may log after it
            if line.startswith(STOP):
                return line.removeprefix(STOP).strip()
        return f"{self.name} stopped, and its reason could not be written to {self.log}; free some space, then resume"


def thread_environment(environ: Mapping[str, str], render_threads: int = 1) -> dict[str, str]:
    """Return a worker's variables: one compute thread and `render_threads` threads, unless `environ` sets others.

    Mesa's llvmpipe renders the same pixels with any number; 0 means no thread but the caller's.
    """
    threads = str(min(render_threads, MAX_RENDER_THREADS)) if render_threads > 1 else "0"
    return {"LP_NUM_THREADS": threads, **{name: "1" for name in THREAD_VARIABLES}, **environ}


@dataclass
class WorkerSupervisor:
    """The workers of one invocation.

    names      of the workers, unique in the run
    wants_video  which videos, by outcome and rank
    variables  environment variables of a worker, by its number
    worker     the worker's module
    growth     None: the number of workers is fixed
    """

    directory: Path
    store: Store
    invocation: int
    clock: InvocationClock
    names: list[str]
    limits: StallPolicy
    wants_video: Callable[[bool, int], bool]
    token: str | None
    variables: Callable[[int], dict[str, str]]
    worker: str = provenance.WORKER
    growth: Growth | None = None
    render_threads: int = 1

    def __post_init__(self) -> None:
        self.environment = thread_environment(os.environ, self.render_threads)
        if self.token:
            self.environment["VLALAB_TOKEN"] = self.token
        self.children: dict[str, Child] = {}
        self.deaths, self.done_at_death = 0, 0
        self.oom_kills = memory.oom_kills()
        self.renewed = time.monotonic()
        self.steps_at_renewal: dict[str, int] = {}  # by lease token: the steps that the store knows of
        self.counts = self.store.counts()  # as of the last step

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
        environment = {**self.environment, **self.variables(self.names.index(name))}
        try:
            with open(log, "ab") as output:
                log_start = output.tell()  # the child moves it
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment,
                    start_new_session=True, pass_fds=(handle,),
                )  # fmt: skip
        finally:
            os.close(handle)
        self.children[name] = Child(name, process, heartbeat, log, log_start)

    def step(self) -> list[str]:
        """Check the workers once; return messages about changes. RunFailed if the run cannot continue."""
        messages = []
        for child in list(self.children.values()):
            if child.is_gone(self.limits.lease_s):
                messages += self.replace(child)
        leases = self.store.leases()
        if time.monotonic() - self.renewed >= self.limits.lease_s / 6:
            self.renewed = time.monotonic()
            self.steps_at_renewal.clear()
            for name, lease in leases.items():
                active = self.children.get(name)
                if active is not None and active.killed is None:
                    steps = self.steps_at_renewal[lease.token] = active.heartbeat.steps
                    self.store.heartbeat(lease, self.clock.now(), self.limits.lease_s, steps)
        for fault in self.store.expire(self.clock.now(), self.limits.retries):
            messages.append(f"the lease of task {fault.task} episode {fault.episode} expired")
        self.counts = self.store.counts()
        for name, lease in leases.items():  # steps since the store was last updated
            if (active := self.children.get(name)) and lease.task in self.counts:
                stored = self.steps_at_renewal.get(lease.token, 0)
                self.counts[lease.task]["steps"] += max(0, active.heartbeat.steps - stored)
        broken = total(self.counts, "broken")
        if broken >= MAX_BROKEN or (broken and not has_work(self.counts)):
            last = self.store.faults(self.invocation)[-1]
            raise RunFailed(
                f"{plural(broken, 'episode')} could not be run in {self.limits.retries + 1} tries "
                f"each; the last error, in task {last.task} episode {last.episode}: {last.error}"
            )
        reason = self.growth.reason(self.store, self.invocation, len(self.names)) if self.growth else ""
        if reason:
            self.names.append(worker_names(len(self.names) + 1)[-1])
            self.spawn(self.names[-1])
            self.store.note(self.invocation, {"workers": len(self.names)})
            messages.append(reason)
        return messages

    def replace(self, child: Child) -> list[str]:
        """Return a dead worker's episode to the store; start a successor if there is work."""
        del self.children[child.name]
        code = child.process.poll()
        if code == FATAL:
            raise RunFailed(child.exit_message())
        if code == 0:
            if has_work(self.store.counts()):
                self.spawn(child.name)
            return []
        reason = child.exit_message()
        lost = self.store.take_back(child.name, self.clock.now(), self.limits.retries, reason)
        message = reason + "".join(f" in task {fault.task} episode {fault.episode}" for fault in lost)
        counts = self.store.counts()
        if not has_work(counts) and not self.store.missing_videos(self.invocation, self.wants_video):
            return [message]
        if self.children and code == -signal.SIGKILL and child.killed is None:
            before, self.oom_kills = self.oom_kills, memory.oom_kills()
            if self.oom_kills > before:  # the kernel has killed a process of this machine for lack of memory
                self.growth, left = None, len(self.children)
                if isinstance(self.store, RunStore):
                    self.store.note(self.invocation, {"workers": left})
                return [f"{message}; out of memory: continuing with {plural(left, 'worker')}"]
        done = total(counts, "done")
        self.deaths, self.done_at_death = (1 if done > self.done_at_death else self.deaths + 1), done
        if self.deaths > MAX_DEATHS * len(self.names):
            logs = self.directory / "logs"
            raise RunFailed(f"workers keep failing ({self.deaths} in a row); the last: {reason}; logs: {logs}")
        self.spawn(child.name)
        return [f"{message}; starting another"]

    def finished(self) -> bool:
        """Return whether no work is left and every worker, also one that renders a video, has ended."""
        return not has_work(self.counts) and not self.children

    def stop(self) -> None:
        """Stop the workers with SIGTERM, after GRACE_S with SIGKILL."""
        processes = [child.process for child in self.children.values()]
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + GRACE_S
        for process in processes:
            if not ends_within(process, deadline - time.monotonic()):
                process.kill()
        for process in processes:
            ends_within(process, UNKILLABLE_S)
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


def ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(max(0.1, seconds))
    except subprocess.TimeoutExpired:
        return False
    return True
