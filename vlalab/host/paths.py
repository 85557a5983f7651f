"""Paths of the repository, the environments and the shared volume."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Each holds one package.
SHARED = tuple(f"shared/{path.parent.name}" for path in sorted((ROOT / "shared").glob("*/pyproject.toml")))
COMMON = ROOT / SHARED[0]
ADMIN = ROOT / "admin"  # Ansible and Fabric, for administrators
CLUSTER = ROOT / "cluster"  # Ray, for evaluations on many machines
HUB = ROOT / "hub"  # JupyterHub, for a class
WITHOUT_IMAGE = (ADMIN.name, CLUSTER.name, HUB.name)  # environments in their own directories
CLONES_VOLUME = ROOT / "shared" / "volume"


def image_names() -> list[str]:
    """Return the names of all environments: the directories of images/ with a requirements.in."""
    return sorted(path.parent.name for path in (ROOT / "images").glob("*/requirements.in"))


def variant_names() -> list[str]:
    """Return the names of all variants of environments: openvla-cu130 is the directory images/openvla/cu130."""
    return sorted("-".join(path.parts[-3:-1]) for path in (ROOT / "images").glob("*/[!.]*/overrides.txt"))


def environment_directory(name: str, root: Path = ROOT) -> Path:
    """Return the directory of an environment or a variant; no environment's own name contains a hyphen."""
    return root / name if name in WITHOUT_IMAGE else root.joinpath("images", *name.split("-"))


def volume() -> Path:
    """Return the root of the shared volume: $VLALAB_VOLUME, else `default_volume`."""
    named = os.environ.get("VLALAB_VOLUME")
    return Path(named).expanduser().resolve() if named else default_volume()


def default_volume(clone_volume: Path = CLONES_VOLUME) -> Path:
    """Return shared/volume of the repository, or ~/vla-lab if the caller cannot write to it.

    So users who share one installation have their own volumes.
    """
    existing = clone_volume if clone_volume.exists() else clone_volume.parent
    home = os.path.expanduser("~")
    if os.access(existing, os.W_OK | os.X_OK) or not os.access(home, os.W_OK | os.X_OK):
        return clone_volume
    return Path(home) / "vla-lab"


def display_path(path: Path) -> str:
    """Return a path for messages: relative if it is below the current directory, else absolute."""
    cwd = Path.cwd()
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) and path != cwd else str(path)


def caller_variables() -> dict[str, str]:
    """Return the variable with the caller's directory; programs run elsewhere and print paths relative to it."""
    return {"VLALAB_HERE": str(Path.cwd())}


def python_path() -> str:
    """Return the PYTHONPATH under which services/* and the packages of shared/ are importable."""
    return os.pathsep.join(map(str, (ROOT, *(ROOT / directory for directory in SHARED))))
