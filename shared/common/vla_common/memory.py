"""What a process still holds of something large that it has done with, handed back to the machine."""

import ctypes
import gc


def give_back() -> None:
    """Frees what only cycles of references keep alive, and what `trim` does.

    A scene's model is one small object with hundreds of MB behind it: Python's collector counts the object and is late.
    """
    gc.collect()
    trim()


def settle() -> None:
    """Has the collector pass over all that lives now, as after imports: it would look at each of hundreds of thousands
    of objects that never go, at every scene again. What of it is garbage already stays.
    """
    gc.freeze()


def trim() -> None:
    """Hands the C library's free pages back to the kernel, where the library does that (glibc)."""
    call = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if call is not None:
        call(0)
