"""A wall clock that can jump: Python imports this by itself where the folder is first on PYTHONPATH.

`time.time` gains the seconds that stand in the file $CHAOS_CLOCK names (8 bytes, a float). A real jump would need root
and hit the whole machine; the monotonic clock goes on as it is, as in a real one.
"""

import mmap
import os
import struct
import time

_real = time.time


def _shifted(path: str):
    with open(path, "rb") as file:
        page = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    return lambda: _real() + struct.unpack("d", page[:8])[0]


if _path := os.environ.get("CHAOS_CLOCK"):
    time.time = _shifted(_path)
