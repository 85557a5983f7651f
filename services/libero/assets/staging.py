"""Directories on the volume that appear whole or not at all, also when their writer is killed or the power fails."""

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
    """Yield a new directory next to `target` to build in, and remove it afterwards; also those of killed writers.

    A site is held by a lock that ends with its writer: nobody removes one that is in use.
    """
    prefix = f".{target.name}-"
    for old in target.parent.glob(f"{prefix}*"):
        with suppress(OSError), _locked(old, fcntl.LOCK_EX | fcntl.LOCK_NB):
            shutil.rmtree(old, ignore_errors=True)
    while True:  # another writer may remove it between its creation and its lock
        site = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
        try:
            lock = os.open(site, DIRECTORY)
        except FileNotFoundError:
            continue
        with suppress(OSError):  # a file system without locks: nothing is removed there either
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
    """Hold a lock; of two writers at once one waits."""
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def give_to_owner(tree: Path, like: Path) -> None:
    """Give what root wrote, and all below it, to the owner of `like`.

    The tree itself comes last: nobody can plant a link in it meanwhile; a link changes hands, not its target.
    """
    owner = like.stat()
    if os.geteuid() == 0 and (owner.st_uid, owner.st_gid) != (0, 0):
        for path in (*tree.rglob("*"), tree):
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def sync_tree(directory: Path) -> None:
    """Wait until a directory's files and names are on the disk."""
    for parent, _, files in os.walk(directory):
        for path in (*(os.path.join(parent, name) for name in files), parent):
            _sync(path)


def rename(source: Path, target: Path) -> None:
    """Rename and wait until that is on the disk. Raises OSError where `target` is a directory that is not empty."""
    os.rename(source, target)
    _sync(target.parent)


def _sync(path: str | os.PathLike) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
