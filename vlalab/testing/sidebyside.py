"""Runs parts of the tests side by side, each in a process of its own; what each one prints stays whole and in order.

The first part that has not ended is shown as it goes. What the others print is kept, and shown when it is their turn.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vlalab.host.processes import die_with_parent
from vlalab.testing.results import Result, read_record, write_record

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

MEMORY_GB = 5.0  # of a part: an evaluation's workers, or the models of a service's tests
POLL_S = 0.1
THREADS = "OMP_NUM_THREADS"  # variable: threads of torch's and numpy's libraries in one process


@dataclass(frozen=True)
class Job:
    """A part: `run` gets the results of those that ended before it began, and returns its own. Waits for `after`."""

    name: str
    run: Callable[[Sequence[Result]], list[Result]]
    after: set[str] = field(default_factory=set)
    is_long: bool = False  # starts first, so that nothing waits for it alone
    is_waiting: bool = False  # for processes most of its time: takes no turn of those that compute, where two may run


def at_once() -> int:
    """Returns how many parts this machine runs at a time: one per core, with memory for each."""
    free_kib = int(re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())[1])
    return max(1, min(len(os.sched_getaffinity(0)), int(free_kib * 1024 / 1e9 / MEMORY_GB)))


def threads(most: int) -> int:
    """Returns how many threads a process of a part computes with where `most` parts run at a time."""
    return max(1, len(os.sched_getaffinity(0)) // most)


def at_once_waiting() -> int:
    """Returns how many tests that mostly wait for processes run at a time: one more, where more than one may."""
    most = at_once()
    return most + (most > 1)


def run(jobs: Sequence[Job], most: int) -> list[Result]:
    """Returns the results of all jobs in their order, at most `most` running at a time, but for those that wait.

    A job that dies counts as one failure. One job alone runs in this process, on its terminal. Several share the cores:
    threads that wait for each other on cores where others compute take three times the processor time.
    """
    if len(jobs) == 1:
        return jobs[0].run([])
    if most == 1:
        jobs = [replace(job, is_waiting=False) for job in jobs]
    with tempfile.TemporaryDirectory(prefix="vlalab-test-") as folder, _Lanes(jobs, Path(folder)) as lanes:
        for shown in jobs:
            with lanes.output(shown).open(errors="replace") as output:
                while not lanes.ended(shown):
                    lanes.start(most)
                    print(output.read(), end="", flush=True)
                    time.sleep(POLL_S)
                print(output.read(), end="", flush=True)
        return [result for job in jobs for result in lanes.results(job)]


class _Lanes:
    """The processes of jobs, and the files that hold what they print and what came of them."""

    def __init__(self, jobs: Sequence[Job], folder: Path) -> None:
        self.jobs, self.folder = jobs, folder
        self.processes: dict[str, BaseProcess] = {}
        for job in jobs:
            self.output(job).touch()

    def __enter__(self) -> _Lanes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.terminate()  # nothing to one that has ended
        for process in self.processes.values():
            process.join()

    def output(self, job: Job) -> Path:
        """Returns the file that holds what a job prints."""
        return self.folder / f"{job.name}.txt"

    def start(self, most: int) -> None:
        """Starts what may start now, the longest first."""
        from multiprocessing import get_context  # what no other task need load

        for job in sorted(self.jobs, key=lambda job: not job.is_long):
            has_turn = job.is_waiting or self._turns() < most
            if has_turn and job.name not in self.processes and job.after <= self._ended_names():
                done = [result for other in self.jobs if self.ended(other) for result in self.results(other)]
                arguments = (job, done, self.output(job), self._record(job), die_with_parent(), threads(most))
                self.processes[job.name] = get_context("fork").Process(target=_child, args=arguments)
                self.processes[job.name].start()

    def _turns(self) -> int:
        """Returns how many jobs run that take a turn."""
        running = [job for job in self.jobs if job.name in self.processes and self.processes[job.name].is_alive()]
        return sum(not job.is_waiting for job in running)

    def ended(self, job: Job) -> bool:
        """Returns whether a job began and ended."""
        return job.name in self.processes and not self.processes[job.name].is_alive()

    def _ended_names(self) -> set[str]:
        return {job.name for job in self.jobs if self.ended(job)}

    def results(self, job: Job) -> list[Result]:
        """Returns the results of a job that ended."""
        died = self.processes[job.name].exitcode != 0
        return [*read_record(self._record(job)), *([Result(job.name, failed=1)] if died else [])]

    def _record(self, job: Job) -> Path:
        return self.folder / f"{job.name}.jsonl"


def _child(
    job: Job, done: Sequence[Result], output: Path, record: Path, die_with_parent: Callable[[], None], threads: int
) -> None:
    die_with_parent()
    os.environ.setdefault(THREADS, str(threads))
    _print_into(output)
    write_record(record, job.run(done))


def _print_into(path: Path) -> None:
    """Lets this process and those that it starts print into a file."""
    file = path.open("a", buffering=1)
    for number in (1, 2):
        os.dup2(file.fileno(), number)
    sys.stdout = sys.stderr = file
