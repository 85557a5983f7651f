"""The number of torch's CPU threads and how they wait. Does not import torch: settings must come first."""

from __future__ import annotations

import functools
import os
import statistics
import time
from pathlib import Path

SAMPLE_S = 0.3
SPINS = "10000"  # some tens of microseconds: longer than the pause between two layers


def set_wait_policy() -> None:
    """Let threads spin briefly before they sleep, unless $OMP_WAIT_POLICY is set.

    If they sleep at once, they are woken for every layer: an action takes 1.7 times as long. If they always spin, they
    take cores from simulators. compose.yaml sets the same for every service and program of the lab.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "passive"
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # read by libgomp, which torch uses


def running_threads() -> int:
    """Return the number of this process's threads that run or wait for a core, including the caller."""
    count = 0
    for task in os.listdir("/proc/self/task"):
        try:
            state = Path(f"/proc/self/task/{task}/stat").read_bytes().rpartition(b") ")[2][:1]
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended
            continue
        count += state == b"R"
    return count


@functools.cache
def cpu_limit(root: Path = Path("/sys/fs/cgroup"), cgroup_file: Path = Path("/proc/self/cgroup")) -> float:
    """Return the CPU limit of this process's control groups (v2), in cores: a container's limit, a user's quota."""
    group = next((line[3:] for line in cgroup_file.read_text().splitlines() if line.startswith("0::")), "/")
    limits = [float("inf")]
    for directory in (root / group.strip("/"), *(root / group.strip("/")).parents):
        if directory.is_relative_to(root) and (directory / "cpu.max").is_file():
            quota, period = (directory / "cpu.max").read_text().split()
            limits += [] if quota == "max" else [int(quota) / int(period)]
    return min(limits)


def idle_cores() -> int:
    """Return the number of cores that other processes leave idle, at least 1 and at most the CPU limit.

    Subtracts the machine's runnable threads (Linux) except this process's own, which may still be spinning.
    """
    process_threads = running_threads()
    running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    cores = len(os.sched_getaffinity(0)) + process_threads - running
    return max(1, int(min(cores, len(os.sched_getaffinity(0)), cpu_limit())))


def use_idle_cores(limit: int) -> None:
    """Set torch's threads, for the calling thread, to the number of idle cores, at most `limit`.

    Threads that share cores with other programs wait for each other after every operation: an action of a tiny model
    then takes four times as long with two threads as with one.
    """
    import torch

    threads = min(limit, idle_cores())
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)


@functools.cache
def max_threads() -> int:
    """Return torch's default number of threads; call it before changing the number."""
    import torch

    return int(torch.get_num_threads())


def choose_threads() -> int:
    """Set and return the number of threads of a run: the idle cores, or $OMP_NUM_THREADS.

    Takes the median of many samples, since one may count a program that ends at once. Sampling does not sleep, so that
    runs that start at the same time count each other.
    """
    import torch

    limit = max_threads()
    if not os.environ.get("OMP_NUM_THREADS"):
        end, samples = time.monotonic() + SAMPLE_S, [idle_cores()]
        while time.monotonic() < end:
            samples.append(idle_cores())
        torch.set_num_threads(min(limit, statistics.median_low(samples)))
    return int(torch.get_num_threads())


def restore_threads(stored: int | None) -> int:
    """Restore a run's number of threads, on which its sums depend; return the number.

    None (older files) and $OMP_NUM_THREADS keep the current number. At most torch's default number.
    """
    import torch

    if stored and not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(min(stored, max_threads()))
    return int(torch.get_num_threads())
