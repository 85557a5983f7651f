"""Folders below a root in which others may write, entered one by one through descriptors, following no link on the way.

Every container, and every notebook in one, may put a link where root is about to make a folder or to change its owner.
A path that is checked first can be exchanged afterwards; a descriptor cannot. Only the standard library is needed.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ENTER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class LinkError(OSError):
    """A link, or what is no folder, stands where a folder should; `filename` is where."""


@contextmanager
def directory(root: Path, *names: str, make: bool = False) -> Iterator[int]:
    """Yields a descriptor of root/names…, each one a folder of its own; `root` itself may be a link of its owner's.

    make: a missing one is made, and belongs to whoever owns the folder around it. Raises LinkError (an OSError) for a
    link in the way, and OSError where a folder is missing or cannot be made.
    """
    descriptor = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        path = root
        for name in names:
            path = path / name
            inner = _enter(descriptor, name, path, make)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def refuse_links(place: Path) -> None:
    """Raises LinkError where root is about to write in a folder that is a link, or holds one at any depth.

    For folders that one program alone fills, and never with links: any that is there was planted. Others than root
    could be led to nothing but what is theirs.
    """
    if os.geteuid() != 0:
        return
    found = [place] if place.is_symlink() else []
    for around, directories, files in os.walk(place):
        found += [path for name in (*directories, *files) if (path := Path(around) / name).is_symlink()]
    for path in found:
        raise LinkError(errno.ELOOP, f"it is a link to {os.readlink(path)!r}, and root follows none there", str(path))


def _enter(around: int, name: str, path: Path, make: bool) -> int:
    try:
        return os.open(name, _ENTER, dir_fd=around)
    except FileNotFoundError:
        if not make:
            raise
    except NotADirectoryError:
        raise LinkError(errno.ENOTDIR, _in_the_way(around, name), str(path)) from None
    try:
        os.mkdir(name, dir_fd=around)
    except FileExistsError:  # somebody else was faster; what they made is looked at all the same
        return _enter(around, name, path, make=False)
    inner = _enter(around, name, path, make=False)
    status = os.fstat(around)
    if os.geteuid() == 0 and (status.st_uid, status.st_gid) != (0, 0):
        give(inner, status.st_uid, status.st_gid)
    return inner


def _in_the_way(around: int, name: str) -> str:
    """Returns what is wrong with an entry that is no folder."""
    if not stat.S_ISLNK(os.stat(name, dir_fd=around, follow_symlinks=False).st_mode):
        return "it is no folder"
    return f"it is a link to {os.readlink(name, dir_fd=around)!r}, and links are not followed there"


def give(descriptor: int, uid: int, gid: int, mode: int | None = None) -> None:
    """Gives the folder of a descriptor to a user, perhaps with another mode."""
    handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=descriptor)  # O_PATH can change nothing
    try:
        os.fchown(handle, uid, gid)
        if mode is not None:
            os.fchmod(handle, mode)
    finally:
        os.close(handle)
