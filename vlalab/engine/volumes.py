"""The shared volume as the host prepares it: whose it is, and that containers can write to it.

The layout itself is vla_common/volume.py's, which runs here as a program of its own.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

from vlalab.engine import docker
from vlalab.host import owners, paths
from vlalab.host.console import LabError, say

DEFAULT_USER = (1000, 1000)  # the first user of a Debian or Ubuntu machine, and the images' own


def owner() -> tuple[int, int]:
    """Return uid and gid that the volume's files should have.

    $VLALAB_UID and $VLALAB_GID, else the caller's; for root: sudo's caller, else the owner of the volume or of the
    directory that it will lie in, else (where that is root) 1000.
    """

    def number(variable: str) -> int:
        value = os.environ.get(variable, "")
        if not value.isdigit():
            raise LabError(f"{variable} is '{value}'; expected a number, as `id -u` and `id -g` print it")
        return int(value)

    if os.environ.get("VLALAB_UID"):
        return number("VLALAB_UID"), number("VLALAB_GID" if os.environ.get("VLALAB_GID") else "VLALAB_UID")
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    if os.environ.get("SUDO_UID", "0") != "0":
        return number("SUDO_UID"), number("SUDO_GID")
    status = _existing_ancestor(paths.volume()).stat()
    return (status.st_uid, status.st_gid) if status.st_uid != 0 else DEFAULT_USER


def container_user() -> tuple[int, int]:
    """Return uid and gid inside containers. A rootless engine's root is the caller outside."""
    return (0, 0) if docker.is_rootless() else owner()


def prepare() -> None:
    """Make the volume ready for containers that run as `owner()`. Raises LabError that says what to do."""
    if ":" in str(paths.volume()):
        raise LabError(f"the volume {paths.volume()} has a ':' in its path, which Docker cannot mount; move it")
    uid, gid = owner()
    variables = {**os.environ, "PYTHONPATH": str(paths.COMMON), "VLALAB_VOLUME": str(paths.volume())}
    command = [sys.executable, "-m", "vla_common.volume", str(uid), str(gid)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise LabError(f"the volume: {done.stderr.strip()}")
    for line in done.stdout.splitlines():
        say(line)


def require_writable(root: Path | None = None) -> None:
    """Raise LabError where the caller could not write to the volume (`root`), or make it."""
    root = root or paths.volume()
    existing = _existing_ancestor(root)
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        raise LabError(f"the volume {_described(root)} cannot be written to; set VLALAB_VOLUME to a folder that can")


def require_reachable() -> None:
    """Raise LabError where there is a volume that the caller may not look into."""
    root = paths.volume()
    existing = _existing_ancestor(root)
    if not os.access(existing, os.X_OK) or (existing == root and not os.access(root, os.R_OK)):
        raise LabError(f"the volume {_described(root)} is closed to you; set VLALAB_VOLUME to a folder of your own")


def _existing_ancestor(root: Path) -> Path:
    """Return the volume, or where it does not exist yet the directory above it that does."""
    return next(path for path in (root, *root.parents) if os.path.exists(path))


def _described(root: Path) -> str:
    uid = _existing_ancestor(root).stat().st_uid
    return str(root) if uid == os.geteuid() else f"{root}, which is {owners.name_of(uid)}'s,"


def give(path: Path) -> None:
    """Give a file or folder that root made to the owner of the folder around it; never what a link leads to."""
    if os.geteuid() != 0:
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status, around = os.fstat(descriptor), path.parent.stat()
        made_by_root = stat.S_ISDIR(status.st_mode) or status.st_nlink == 1
        if status.st_uid == 0 and made_by_root:
            os.fchown(descriptor, around.st_uid, around.st_gid)
    finally:
        os.close(descriptor)
