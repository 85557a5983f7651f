"""Open directories below a root that others can write to: one by one, through descriptors, without following links.

Any container or notebook could place a link where root is about to create a directory or change its owner. A checked
path can be replaced after the check; a descriptor cannot. Imports the standard library only.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ENTER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class LinkError(OSError):
    """A link or a file is in the place of a directory; `filename` is its path."""


@contextmanager
def directory(root: Path, *names: str, make: bool = False) -> Iterator[int]:
    """Yield a descriptor of root/names…, none of them a link; `root` itself may be one.

    make: create missing directories, owned by the owner of their parent. Raises LinkError (an OSError) for a link, and
    OSError for a directory that is missing or cannot be created.
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


def require_no_links(root: Path) -> None:
    """Raise LinkError if this process is root and a directory is a link or contains one at any depth.

    For directories that only the lab writes, never with links: any link in them was planted. A user other than root
    could only be led to files that are already theirs.
    """
    if os.geteuid() != 0:
        return
    links = [root] if root.is_symlink() else []
    for parent, directories, files in os.walk(root):
        links += [path for name in (*directories, *files) if (path := Path(parent) / name).is_symlink()]
    for path in links:
        raise LinkError(errno.ELOOP, f"it is a link to {os.readlink(path)!r}; root follows no links there", str(path))


def _enter(parent: int, name: str, path: Path, make: bool) -> int:
    try:
        return os.open(name, _ENTER, dir_fd=parent)
    except FileNotFoundError:
        if not make:
            raise
    except NotADirectoryError:
        problem = "it is not a directory"
        if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            problem = f"it is a link to {os.readlink(name, dir_fd=parent)!r}, and links are not followed there"
        raise LinkError(errno.ENOTDIR, problem, str(path)) from None
    try:
        os.mkdir(name, dir_fd=parent)
    except FileExistsError:
        # another process was faster; its directory is checked like any other
        return _enter(parent, name, path, make=False)
    inner = _enter(parent, name, path, make=False)
    status = os.fstat(parent)
    if os.geteuid() == 0 and (status.st_uid, status.st_gid) != (0, 0):
        give(inner, status.st_uid, status.st_gid)
    return inner


def give(descriptor: int, uid: int, gid: int, mode: int | None = None) -> None:
    """Change the owner of a descriptor's directory, and optionally its mode."""
    handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=descriptor)  # O_PATH allows no changes
    try:
        os.fchown(handle, uid, gid)
        if mode is not None:
            os.fchmod(handle, mode)
    finally:
        os.close(handle)
