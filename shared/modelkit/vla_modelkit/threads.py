"""How many CPU threads torch computes in, and how they wait. Importing this imports no torch: it must come before."""

from __future__ import annotations

import os
from pathlib import Path

SPINS = "10000"  # some tens of microseconds: longer than the pause between two layers


def set_wait_policy() -> None:
    """Lets threads look out for work for a moment before they sleep, unless $OMP_WAIT_POLICY says otherwise.

    Asleep at once, they are woken for every layer: an action takes 1.7 times as long. Awake all the time, they take the
    cores from simulators.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "passive"
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # libgomp's own, which torch brings


def idle_cores() -> int:
    """Returns how many of this process's cores are free for it now, at least 1: all less those that others compute on.

    Counts the machine's threads that run or wait for a core (Linux), without the one that asks.
    """
    running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    return max(1, len(os.sched_getaffinity(0)) + 1 - running)


def use_idle_cores(most: int) -> None:
    """Has torch compute from now on in as many threads as cores are idle, at most `most`, in the calling thread.

    Threads that share their cores with other programs wait for each other at the end of every operation: an action
    of a tiny model then takes four times as long in two threads as in one.
    """
    import torch

    threads = min(most, idle_cores())
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)
