"""A small file system for a test that fills a disk: real ones, so that the kernel's own errors come."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small(directory: Path, size: str = "1m") -> Iterator[None]:
    """Mounts an empty file system of that size over a folder; skips the test where this machine lets us mount none."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(directory)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a small file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=False)


def fill(directory: Path) -> Path:
    """Writes until a small file system is full; returns the file to remove."""
    filler = directory / "filler"
    with suppress(OSError), open(filler, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return filler
