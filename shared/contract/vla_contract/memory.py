"""The C library's memory in processes that receive or send an image at every step."""

import ctypes

# mallopt's parameters (malloc.h), and their values in bytes.
SETTINGS = {-1: 16 * 2**20, -3: 8 * 2**20}  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD


def keep_freed_memory() -> None:
    """Let glibc keep up to 16 MiB of freed memory, and use it for the next images up to 8 MiB.

    By default it returns an image's pages to the kernel and requests them again at the next step, which takes as long
    as the rest of a request (`bench/wire.py`). Without effect on other C libraries.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in SETTINGS.items():
            mallopt(parameter, value)
