"""What a process still holds of something large that it has done with, handed back to the machine."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
