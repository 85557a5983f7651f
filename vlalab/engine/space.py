"""How much of the engine's disk images take, as the manifests say, and whether it is there."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from vlalab.description import manifests
from vlalab.engine import docker, images

CACHE_FACTOR = 1.6  # a first build also fills the cache of unpacked wheels; the manifests' sizes have a margin
TOOLS_GB = 1.0  # the distribution's packages and what builds need beside the images
REBUILD_GB = 1.0
# The containerd of the distribution's and of Docker's own packages; its configuration may name another root.
SYSTEM_CONTAINERD = "/run/containerd/containerd.sock"
CONTAINERD_CONFIG = "/etc/containerd/config.toml"
CONTAINERD_ROOT = "/var/lib/containerd"


def shortage(names: Sequence[str], free: int, directory: str, no_cache: bool = False) -> str | None:
    """Return what is said where a build of those images takes more than the free bytes at a place; None: it fits."""
    need = needed_gb(names, no_cache)
    if free / 1e9 >= need:
        return None
    return (
        f"building {', '.join(names)} takes up to {need:.1f} GB and {directory} has {free / 1e9:.1f} GB free; "
        "build fewer at a time, or see what can be freed: ./lab clean"
    )


def needed_gb(names: Sequence[str], no_cache: bool = False) -> float:
    """Return what a build takes: images that are not there with their cache, of the others the last layers."""
    built = images.found(names)
    new = [name for name in names if no_cache or images.unusable(name, built.get(name)) is not None]
    return expected_gb(new) * CACHE_FACTOR + (TOOLS_GB if new else 0.0) + REBUILD_GB * (len(names) - len(new))


def expected_gb(names: Sequence[str]) -> float:
    """Return how large those images are together, as the manifests say; a layer that several have counts once."""
    environments = [manifests.environment(name) for name in names]
    layers = {layer: size for environment in environments for layer, size in environment.shared_gb.items()}
    return sum(environment.image_gb - sum(environment.shared_gb.values()) for environment in environments) + sum(
        layers.values()
    )


def images_directory(info: Mapping, containerd: str | None) -> str:
    """Return where an engine keeps images, "" where it does not say.

    New engines keep them in containerd's directory, which data-root does not move, unless containerd is their child.
    containerd: the text of CONTAINERD_CONFIG.
    """
    snapshotter = any("io.containerd.snapshotter" in str(value) for _, value in info.get("DriverStatus") or ())
    address = (info.get("Containerd") or {}).get("Address") or SYSTEM_CONTAINERD
    if not snapshotter or address != SYSTEM_CONTAINERD or docker.is_rootless(info):
        return info.get("DockerRootDir", "")
    root = re.search(r"""(?m)^\s*root\s*=\s*["'](.+)["']""", containerd or "")
    return root[1] if root else CONTAINERD_ROOT


def free_at_engine() -> int | None:
    """Return the bytes free where the engine keeps images; None where that place is not on this machine."""
    config = Path(CONTAINERD_CONFIG)
    try:
        directory = Path(images_directory(docker.info(), config.read_text() if config.exists() else None))
        return shutil.disk_usage(directory).free if directory.is_absolute() else None
    except OSError:
        return None
