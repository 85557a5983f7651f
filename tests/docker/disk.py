"""Space on the disk that the engine keeps its images on: what the tests need, checked first, and what is used."""

from __future__ import annotations

import os
from pathlib import Path

from tests.docker.packages import Unavailable
from vlalab.engine import docker

# The most in use at one time, in GB: while gr00t, ws_mdl and hf are built, with their cache of unpacked wheels, beside
# libero (`./lab build` itself then asks for 23.7). Measured without hf, whose own layers are about 1.5 GB: 25.
# vfs has no layers but copies: every layer holds all of those below it.
NEED_GB = {"overlay2": 28.0, "overlayfs": 28.0, "btrfs": 28.0, "zfs": 28.0}
NEED_AS_COPIES_GB = 110.0


def free_bytes(path: Path) -> int:
    """Returns what may still be written where the path lies."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def engine_root() -> Path | None:
    """Returns where the engine keeps its data; None when that is on another machine."""
    root = Path(docker.info().get("DockerRootDir", ""))
    return root if root.is_absolute() and root.exists() else None


def check() -> None:
    """Raises Unavailable where the engine's disk has less free than the tests need."""
    if root := engine_root():
        check_place(root, docker.info().get("Driver", ""))


def check_place(path: Path, driver: str = "overlay2") -> None:
    """Raises Unavailable where an engine that keeps images there, with that storage driver, would run out of disk."""
    need, free = NEED_GB.get(driver, NEED_AS_COPIES_GB), free_bytes(path) / 1e9
    if free < need:
        raise Unavailable(
            f"images take up to {need:.0f} GB at a time (storage driver {driver}), and {path} has {free:.1f} GB free"
        )
