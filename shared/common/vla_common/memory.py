"""Memory: what a process no longer needs goes back to the machine; what the machine took processes' lives for."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CGROUP, PROC = Path("/sys/fs/cgroup"), Path("/proc")  # of a container: its own group


def give_back() -> None:
    """Frees what only cycles of references keep alive, and what `trim` does.

    A scene's model is one small object with hundreds of MB behind it: Python's collector counts the object and is late.
    """
    gc.collect()
    trim()


@contextmanager
def importing() -> Iterator[None]:
    """Keeps the collector from looking for garbage while much is imported, which makes none, and settles what came of
    it: a fifth to a quarter of the time that a simulator's libraries take.
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
    """Has the collector pass over all that lives now, as after imports: it would look at each of hundreds of thousands
    of objects that never go, at every scene again. What of it is garbage already stays.
    """
    gc.freeze()


def trim() -> None:
    """Hands the C library's free pages back to the kernel, where the library does that (glibc)."""
    import ctypes  # here: a program begins with this module, and may never need it

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
    own = limit.read_text().strip() if limit.is_file() else "max"
    return min(int(total) * 1024, float("inf") if own == "max" else int(own)) / 1e9
