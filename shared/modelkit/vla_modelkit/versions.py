"""What computes, in numbers: packages, and the lock they come from."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Returns versions of Python and of packages, as far as they are installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def lock_hash(environment: str) -> str | None:
    """Returns the sha256 of an environment's lock: $VLALAB_LOCK_HASH in an image, else the file's own."""
    if os.environ.get("VLALAB_LOCK_HASH"):
        return os.environ["VLALAB_LOCK_HASH"]
    lock = Path(__file__).resolve().parents[3] / "images" / environment / "requirements.lock"
    return hashlib.sha256(lock.read_bytes()).hexdigest() if lock.is_file() else None
