"""Memory of this process and machine: return it, measure its limit, count processes killed for it."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CGROUP, PROC = Path("/sys/fs/cgroup"), Path("/proc")  # of a container: its own group


def give_back() -> None:
    """Collect garbage, then return free memory to the kernel.

    A scene's model is one small Python object with hundreds of MB behind it, so the collector alone runs too late.
    """
    gc.collect()
    trim()


@contextmanager
def importing() -> Iterator[None]:
    """Disable garbage collection during imports and freeze what they create.

    Importing a simulator's libraries takes a fifth to a quarter less time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        settle()
        if was_on:
            gc.enable()


def settle() -> None:
    """Exclude all objects that exist now from garbage collection, as after imports.

    The collector would else visit hundreds of thousands of permanent objects at every scene.
    """
    gc.freeze()


def trim() -> None:
    """Return free pages of the C library to the kernel (glibc only)."""
    import ctypes  # not at the top: most programs never need it

    call = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if call is not None:
        call(0)


def oom_kills() -> int:
    """Return how many processes were killed for memory so far: in this container, else on this machine.

    0 where the system does not count them.
    """
    events = CGROUP / "memory.events"
    counts = (events if events.is_file() else PROC / "vmstat").read_text()
    return int(dict(line.split() for line in counts.splitlines()).get("oom_kill", 0))


def limit_gb() -> float:
    """Return how much memory this container may take, in GB, else how much the machine has."""
    total = PROC.joinpath("meminfo").read_text().split()[1]
    limit = CGROUP / "memory.max"
    cgroup_limit = limit.read_text().strip() if limit.is_file() else "max"
    return min(int(total) * 1024, float("inf") if cgroup_limit == "max" else int(cgroup_limit)) / 1e9
