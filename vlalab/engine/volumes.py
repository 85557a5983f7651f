"""Prepare the shared volume on the host: its owner, and write access for containers.

vla_common/volume.py, which runs as a separate program, creates its layout.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

from vlalab.engine import docker
from vlalab.host import owners, paths
from vlalab.host.console import LabError, log_info

DEFAULT_USER = (1000, 1000)  # the first user of a Debian or Ubuntu machine, and the images' own


def owner() -> tuple[int, int]:
    """Return uid and gid for the volume's files.

    $VLALAB_UID and $VLALAB_GID, else the caller's; for root: sudo's caller, else the owner of the volume or of its
    existing parent directory, else (if that is root) 1000.
    """

    if uid := os.environ.get("VLALAB_UID"):
        gid = os.environ.get("VLALAB_GID") or uid
        if not (uid + gid).isdigit():
            raise LabError(f"VLALAB_UID and VLALAB_GID are '{uid}' and '{gid}'; expected numbers, as `id` prints them")
        return int(uid), int(gid)
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    if os.environ.get("SUDO_UID", "0") != "0":
        return int(os.environ["SUDO_UID"]), int(os.environ["SUDO_GID"])
    status = _existing_ancestor(paths.volume()).stat()
    return (status.st_uid, status.st_gid) if status.st_uid != 0 else DEFAULT_USER


def container_user() -> tuple[int, int]:
    """Return uid and gid inside containers. A rootless engine's root is the caller outside."""
    return (0, 0) if docker.is_rootless() else owner()


def prepare() -> None:
    """Prepare the volume for containers that run as `owner()`. Raises LabError if that fails."""
    if ":" in str(paths.volume()):
        raise LabError(
            f"the volume {paths.volume()} must not have a ':' in its path, since Docker cannot mount it; move it"
        )
    uid, gid = owner()
    variables = {**os.environ, "PYTHONPATH": str(paths.COMMON), "VLALAB_VOLUME": str(paths.volume())}
    command = [sys.executable, "-m", "vla_common.volume", str(uid), str(gid)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise LabError(f"the volume: {done.stderr.strip()}")
    for line in done.stdout.splitlines():
        log_info(line)


def require_writable(root: Path | None = None) -> None:
    """Raise LabError if the caller cannot write to the volume (`root`) or create it."""
    root = root or paths.volume()
    existing = _existing_ancestor(root)
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        raise LabError(f"the volume {_described(root)} is not writable; set VLALAB_VOLUME to a writable directory")


def require_reachable() -> None:
    """Raise LabError if the caller cannot read the existing volume."""
    root = paths.volume()
    existing = _existing_ancestor(root)
    if not os.access(existing, os.X_OK) or (existing == root and not os.access(root, os.R_OK)):
        raise LabError(f"the volume {_described(root)} is not readable; set VLALAB_VOLUME to a directory of your own")


def _existing_ancestor(root: Path) -> Path:
    """Return the volume, or its closest existing parent directory."""
    return next(path for path in (root, *root.parents) if os.path.exists(path))


def _described(root: Path) -> str:
    uid = _existing_ancestor(root).stat().st_uid
    return str(root) if uid == os.geteuid() else f"{root}, which is {owners.user_name(uid)}'s,"


def give_to_parent_owner(path: Path) -> None:
    """Give a file or directory that root created to the owner of its parent directory; never follow a link."""
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
