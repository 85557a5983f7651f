"""Where things lie: the repository, the folders of an environment, the shared volume."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Each holds one package.
SHARED = tuple(f"shared/{name}" for name in ("common", "contract", "modelkit", "datasets", "evaluation", "notebooks"))
COMMON = ROOT / SHARED[0]
ADMIN = ROOT / "admin"  # Ansible and Fabric, for who looks after machines
CLUSTER = ROOT / "cluster"  # Ray, for evaluations on many machines
WITHOUT_IMAGE = (ADMIN.name, CLUSTER.name)  # environments in folders of their own
CLONES_VOLUME = ROOT / "shared" / "volume"


def image_names() -> list[str]:
    """Return the names of all environments: the folders of images/ that hold a requirements.in."""
    return sorted(path.parent.name for path in (ROOT / "images").glob("*/requirements.in"))


def volume() -> Path:
    """Return the root of the shared volume: $VLALAB_VOLUME, else `default_volume`."""
    named = os.environ.get("VLALAB_VOLUME")
    return Path(named).expanduser().resolve() if named else default_volume()


def default_volume(clone_volume: Path = CLONES_VOLUME) -> Path:
    """Return shared/volume of the repository; vla-lab in the caller's home for a caller who may not write there.

    So many users share one install: each has a volume of their own.
    """
    existing = clone_volume if clone_volume.exists() else clone_volume.parent
    home = os.path.expanduser("~")
    if os.access(existing, os.W_OK | os.X_OK) or not os.access(home, os.W_OK | os.X_OK):
        return clone_volume
    return Path(home) / "vla-lab"


def shown(path: Path) -> str:
    """Return a path as a person is told it: relative to where one stands when it lies below, else absolute."""
    cwd = Path.cwd()
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) and path != cwd else str(path)


def of_caller() -> dict[str, str]:
    """Return the variable that tells a program where the caller stands; programs run elsewhere, and show paths so."""
    return {"VLALAB_HERE": str(Path.cwd())}


def python_path() -> str:
    """Return the PYTHONPATH under which services/* and the packages of shared/ are importable."""
    return os.pathsep.join(map(str, (ROOT, *(ROOT / directory for directory in SHARED))))
