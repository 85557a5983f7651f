"""Disk space for images: the size from the manifests, and the free space of the engine."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from vlalab.description import manifests
from vlalab.engine import docker, images

CACHE_FACTOR = 1.6  # a first build also fills the cache of unpacked wheels; the manifests' sizes have a margin
TOOLS_GB = 1.0  # the distribution's packages and build tools
REBUILD_GB = 1.0
# The containerd of the distribution's and of Docker's own packages; its configuration may name another root.
SYSTEM_CONTAINERD = "/run/containerd/containerd.sock"
CONTAINERD_CONFIG = "/etc/containerd/config.toml"
CONTAINERD_ROOT = "/var/lib/containerd"


def shortage(names: Sequence[str], free: int, directory: str, no_cache: bool = False) -> str | None:
    """Return the message if a build of these images exceeds the free bytes of `directory`; None if it fits."""
    need = needed_gb(names, no_cache)
    if free / 1e9 >= need:
        return None
    return (
        f"building {', '.join(names)} takes up to {need:.1f} GB and {directory} has {free / 1e9:.1f} GB free; "
        "build fewer at a time, or free space: ./lab clean"
    )


def needed_gb(names: Sequence[str], no_cache: bool = False) -> float:
    """Return the size of a build in GB: new images with their cache, the last layers of existing ones."""
    built = images.existing(names)
    new = [name for name in names if no_cache or images.unusable(name, built.get(name)) is not None]
    return expected_gb(new) * CACHE_FACTOR + (TOOLS_GB if new else 0.0) + REBUILD_GB * (len(names) - len(new))


def expected_gb(names: Sequence[str]) -> float:
    """Return the total size of these images in GB, from the manifests; a shared layer counts once."""
    environments = [manifests.environment(name) for name in names]
    layers = {layer: size for environment in environments for layer, size in environment.shared_gb.items()}
    return sum(environment.image_gb - sum(environment.shared_gb.values()) for environment in environments) + sum(
        layers.values()
    )


def images_directory(info: Mapping, containerd: str | None) -> str:
    """Return the directory of an engine's images; "" if unknown.

    New engines store them in containerd's directory, which data-root does not move, unless containerd is their child.
    containerd: the text of CONTAINERD_CONFIG.
    """
    snapshotter = any("io.containerd.snapshotter" in str(value) for _, value in info.get("DriverStatus") or ())
    address = (info.get("Containerd") or {}).get("Address") or SYSTEM_CONTAINERD
    if not snapshotter or address != SYSTEM_CONTAINERD or docker.is_rootless(info):
        return info.get("DockerRootDir", "")
    root = re.search(r"""(?m)^\s*root\s*=\s*["'](.+)["']""", containerd or "")
    return root[1] if root else CONTAINERD_ROOT


def free_at_engine() -> int | None:
    """Return the free bytes of the engine's image directory; None if it is not on this machine."""
    config = Path(CONTAINERD_CONFIG)
    try:
        directory = Path(images_directory(docker.info(), config.read_text() if config.exists() else None))
        return shutil.disk_usage(directory).free if directory.is_absolute() else None
    except OSError:
        return None
