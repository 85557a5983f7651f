"""Folders on the volume that appear whole or not at all, also when their writer is killed or the power fails."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def building_site(target: Path) -> Iterator[Path]:
    """Gives a new folder beside `target` to build in, and removes it afterwards; also those that killed writers left.

    A site is held by a lock that ends with its writer, so nobody sweeps one that is in use.
    """
    prefix = f".{target.name}-"
    _sweep(target.parent, prefix)
    site, lock = _open_site(target.parent, prefix)
    try:
        yield site
    finally:
        shutil.rmtree(site, ignore_errors=True)
        os.close(lock)


def _open_site(parent: Path, prefix: str) -> tuple[Path, int]:
    while True:  # another writer may sweep it between its making and its lock
        site = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with suppress(FileNotFoundError):
            lock = os.open(site, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            with suppress(OSError):  # a file system without locks: nothing is swept there either
                fcntl.flock(lock, fcntl.LOCK_EX)
            if site.exists():
                return site, lock
            os.close(lock)


def _sweep(parent: Path, prefix: str) -> None:
    for left in parent.glob(f"{prefix}*"):
        with suppress(OSError):
            lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)


def sync_tree(folder: Path) -> None:
    """Waits until a folder's files and names are on the disk."""
    for place, _, files in os.walk(folder):
        for path in (*(os.path.join(place, name) for name in files), place):
            _sync(path)


def rename(source: Path, target: Path) -> None:
    """Renames and waits until that is on the disk. Raises OSError where `target` is a folder with something in it."""
    os.rename(source, target)
    _sync(target.parent)


def _sync(path: str | os.PathLike) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
