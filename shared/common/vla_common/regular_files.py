"""Open files of other users and programs only if they are regular and not too large.

A link to a regular file is followed, as Hugging Face's cache needs; a device, a pipe or a socket is not opened.
Only the standard library is needed.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

Opener = Callable[[str, int], int]  # as in open(); a caller that must not follow links passes its own


class UnsafeFileError(OSError):
    """The path is not a regular file, or the file is larger than its use allows."""


def require_regular(path: Path) -> None:
    """Raise OSError for a missing path, UnsafeFileError for one that is neither a regular file nor a link to one."""
    _check_status(os.stat(path), None)


def open_regular(path: Path, max_bytes: int | None = None, opener: Opener | None = None) -> BinaryIO:
    """Open a regular file for reading. Raises OSError for anything else.

    UnsafeFileError: it is not a regular file, or has more than `max_bytes`.
    """

    def open_checked(name: str, flags: int) -> int:
        if opener is None:
            require_regular(path)
        descriptor = (opener or os.open)(name, flags | os.O_NONBLOCK)
        try:
            _check_status(os.fstat(descriptor), max_bytes)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    return open(path, "rb", opener=open_checked)


def _check_status(status: os.stat_result, max_bytes: int | None) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UnsafeFileError("it is a device, a pipe or a directory; expected a regular file: remove it")
    if max_bytes is not None and status.st_size > max_bytes:
        raise UnsafeFileError(
            f"it has {status.st_size:,} bytes; expected at most {max_bytes:,}: check where it comes from"
        )
