"""Write files on the volume that other users share: under a lock, for its owner, and on the disk before they appear."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vla_common.volume import make_directory


@contextmanager
def file_lock(directory: Path, name: str) -> Iterator[None]:
    """Hold an exclusive lock, waiting for other holders; it is a file in `directory`, which is created if missing."""
    with (make_directory(directory) / f".{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def give_to_owner(tree: Path, like: Path) -> None:
    """As root, give `tree` and everything below it to the owner of `like`.

    The tree itself comes last, so no other user can create a link in it meanwhile; links are not followed.
    """
    owner = like.stat()
    if os.geteuid() == 0 and (owner.st_uid, owner.st_gid) != (0, 0):
        for path in (*tree.rglob("*"), tree):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def finish(tree: Path) -> None:
    """Give a directory tree to its parent's owner and flush it to the disk."""
    give_to_owner(tree, tree.parent)
    for path in (*tree.rglob("*"), tree):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
