"""Versions of installed packages, and the hash of the lock they come from."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def versions(packages: Iterable[str], absent: str = "") -> dict[str, str]:
    """Return the versions of Python and of packages; a missing package's is `absent`, or is left out."""
    installed = {"python": platform.python_version()}
    for package in packages:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            installed[package] = absent
    return {name: number for name, number in installed.items() if number}


def _lock() -> Path:
    """Return this environment's lock: next to its directory or, in an image, the only one."""
    environment_lock = Path(sys.prefix).parent / "requirements.lock"
    all_locks = [*ROOT.glob("images/*/requirements.lock")]
    return all_locks[0] if len(all_locks) == 1 and not environment_lock.is_file() else environment_lock


LOCK = _lock()


def lock_hash() -> str | None:
    """Return the sha256 of this environment's lock: $VLALAB_LOCK_HASH in an image, else the file's own."""
    if os.environ.get("VLALAB_LOCK_HASH"):
        return os.environ["VLALAB_LOCK_HASH"]
    return hashlib.sha256(LOCK.read_bytes()).hexdigest() if LOCK.is_file() else None


def variant(upstream_torch: str) -> dict[str, str]:
    """Return {"variant": description} in a variant of an environment, whose torch is another than upstream's pin."""
    name = os.environ.get("VLALAB_VARIANT")
    return {"variant": f"{name}: torch {version('torch')}, upstream's pin is {upstream_torch}"} if name else {}


def read_pins(lock: Path) -> dict[str, list[str]]:
    """Return the versions that a lock pins by normalized name, several for different Pythons; none without a file."""
    pins: dict[str, list[str]] = {}
    text = lock.read_text() if lock.is_file() else ""
    for name, pinned in re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.MULTILINE):
        pins.setdefault(normalize(name), []).append(pinned)
    return pins


def normalize(name: str) -> str:
    """Return a distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()
