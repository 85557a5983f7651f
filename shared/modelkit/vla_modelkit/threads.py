"""How many CPU threads torch computes in, and how they wait. Importing this imports no torch: it must come before."""

from __future__ import annotations

import functools
import os
import statistics
import time
from pathlib import Path

SAMPLE_S = 0.3
SPINS = "10000"  # some tens of microseconds: longer than the pause between two layers


def set_wait_policy() -> None:
    """Lets threads look out for work for a moment before they sleep, unless $OMP_WAIT_POLICY says otherwise.

    Asleep at once, they are woken for every layer: an action takes 1.7 times as long. Awake all the time, they take the
    cores from simulators. compose.yaml sets the same for every service and program that the lab starts.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "passive"
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # libgomp's own, which torch brings


def running_threads() -> int:
    """Return how many of this process's threads run or wait for a core, the calling one among them."""
    count = 0
    for task in os.listdir("/proc/self/task"):
        try:
            state = Path(f"/proc/self/task/{task}/stat").read_bytes().rpartition(b") ")[2][:1]
        except (FileNotFoundError, ProcessLookupError):  # it ended
            continue
        count += state == b"R"
    return count


@functools.cache
def cpu_limit(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float:
    """Return how many cores the control groups (v2) of this process allow: a container's limit, a user's quota."""
    group = next((line[3:] for line in own.read_text().splitlines() if line.startswith("0::")), "/")
    limits = [float("inf")]
    for directory in (root / group.strip("/"), *(root / group.strip("/")).parents):
        if directory.is_relative_to(root) and (directory / "cpu.max").is_file():
            quota, period = (directory / "cpu.max").read_text().split()
            limits += [] if quota == "max" else [int(quota) / int(period)]
    return min(limits)


def idle_cores() -> int:
    """Return how many of this process's cores are free for it now, at least 1: all less those that others compute on.

    Counts the machine's threads that run or wait for a core (Linux), without this process's own: those of torch may
    still spin after their last work. No more than a container's CPU limit.
    """
    own = running_threads()
    running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    cores = len(os.sched_getaffinity(0)) + own - running
    return max(1, int(min(cores, len(os.sched_getaffinity(0)), cpu_limit())))


def use_idle_cores(most: int) -> None:
    """Has torch compute from now on in as many threads as cores are idle, at most `most`, in the calling thread.

    Threads that share their cores with other programs wait for each other at the end of every operation: an action
    of a tiny model then takes four times as long in two threads as in one.
    """
    import torch

    threads = min(most, idle_cores())
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)


@functools.cache
def max_threads() -> int:
    """Return in how many threads torch computed before any number was chosen here."""
    import torch

    return int(torch.get_num_threads())


def choose_threads() -> int:
    """Choose and return the number of threads of a whole run: the cores that are idle now, or $OMP_NUM_THREADS.

    The median of many samples counts: a single one may meet a program that ends at once. Sampling computes without a
    pause, so that runs that start at the same time count each other.
    """
    import torch

    most = max_threads()
    if not os.environ.get("OMP_NUM_THREADS"):
        end, samples = time.monotonic() + SAMPLE_S, [idle_cores()]
        while time.monotonic() < end:
            samples.append(idle_cores())
        torch.set_num_threads(min(most, statistics.median_low(samples)))
    return int(torch.get_num_threads())


def restore_threads(stored: int | None) -> int:
    """Compute in as many threads as a run began with, whose sums depend on it; return the number.

    None, of older files, keeps the current number; so does $OMP_NUM_THREADS. No more than torch takes on this machine.
    """
    import torch

    if stored and not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(min(stored, max_threads()))
    return int(torch.get_num_threads())
