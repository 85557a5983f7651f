"""Files that are whole or absent, also after a power cut."""

from __future__ import annotations

import errno
import os
from pathlib import Path

NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def sync(path: Path) -> None:
    """Forces a file's content, or a folder's names, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def publish(draft: Path, final: Path) -> None:
    """Gives a written and synced draft its final name, for good: without the folder a power cut undoes the rename."""
    os.replace(draft, final)
    sync(final.parent)


def name_once(draft: Path, final: Path) -> None:
    """Gives a draft its final name, for good. FileExistsError, whoever was first, where that name is taken."""
    sync(draft)
    try:
        os.link(draft, final)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if final.exists():  # a file system without links: the run's lock keeps others away between here and there
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(final)) from error
        os.rename(draft, final)
    sync(final.parent)
