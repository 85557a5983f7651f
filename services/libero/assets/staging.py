"""Create directories on the volume atomically, even if the writer is killed or the power fails."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@contextmanager
def building_site(target: Path) -> Iterator[Path]:
    """Yield a new directory next to `target` to build in and remove it afterwards, as well as those of killed writers.

    A lock that ends with the writer protects each directory from removal while it is in use.
    """
    prefix = f".{target.name}-"
    for old in target.parent.glob(f"{prefix}*"):
        with suppress(OSError), _locked(old, fcntl.LOCK_EX | fcntl.LOCK_NB):
            shutil.rmtree(old, ignore_errors=True)
    while True:  # another writer may remove it before it is locked
        site = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
        try:
            lock = os.open(site, DIRECTORY)
        except FileNotFoundError:
            continue
        with suppress(OSError):  # on a file system without locks, no writer removes directories
            fcntl.flock(lock, fcntl.LOCK_EX)
        if site.exists():
            break
        os.close(lock)
    try:
        yield site
    finally:
        shutil.rmtree(site, ignore_errors=True)
        os.close(lock)


@contextmanager
def _locked(directory: Path, operation: int) -> Iterator[None]:
    lock = os.open(directory, DIRECTORY)
    try:
        fcntl.flock(lock, operation)
        yield
    finally:
        os.close(lock)


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file `path`, waiting for other holders."""
    with path.open("a") as lock:
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


def sync_tree(directory: Path) -> None:
    """Flush a directory tree to the disk."""
    for parent, _, files in os.walk(directory):
        for path in (*(os.path.join(parent, name) for name in files), parent):
            _sync(path)


def rename(source: Path, target: Path) -> None:
    """Rename and flush to the disk. Raises OSError if `target` is a directory that is not empty."""
    os.rename(source, target)
    _sync(target.parent)


def _sync(path: str | os.PathLike) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
