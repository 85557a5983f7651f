"""Write the kit to a directory, compute its version, and check a written one for damage."""

from __future__ import annotations

import hashlib
import io
from functools import lru_cache
from pathlib import Path

from PIL import Image

from services.libero.assets import content
from services.libero.assets.kit import dishes, fixtures, groceries, household, rooms, variants
from services.libero.assets.kit.mjcf import Asset

MARKER = "KIT"  # file with the version and git's hash of every file


def catalogue() -> dict[str, Asset]:
    """Return every object and fixture of the kit by category name."""
    every = [*groceries.assets(), *dishes.assets(), *household.assets(), *fixtures.assets()]
    originals = {asset.name: asset for asset in every}
    return originals | {asset.name: asset for asset in variants.assets(originals)}


def files() -> dict[str, bytes]:
    """Return the kit's file contents by relative path, sorted by path."""
    values: dict[str, object] = rooms.files()
    for asset in catalogue().values():
        values |= asset.files()
    encoded = {}
    for path in sorted(values):
        value = values[path]
        if isinstance(value, Image.Image):
            buffer = io.BytesIO()
            value.save(buffer, "PNG", compress_level=3)
            value = buffer.getvalue()
        encoded[path] = value.encode() if isinstance(value, str) else value
    return encoded


@lru_cache(maxsize=1)
def version() -> str:
    """Return the kit's version: the sha256 (hex) of its sources."""
    total = hashlib.sha256()
    sources = (path for path in Path(__file__).parent.iterdir() if path.suffix in (".py", ".yaml"))
    for source in sorted(sources):
        total.update(source.name.encode() + b"\0" + source.read_bytes())
    return total.hexdigest()


def build(directory: Path) -> None:
    """Write the kit into `directory`, creating it if necessary (about 210 files, 3 MB, one second)."""
    content_by_path = files()
    directory.mkdir(parents=True, exist_ok=True)
    lines = [f"{version()}\n"]
    for path, data in content_by_path.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        lines.append(f"{content.git_sha1(data)} {path}\n")
    (directory / MARKER).write_text("".join(lines))


def damage(directory: Path) -> str:
    """Return a message if `directory` is not an intact kit of this version, else "".

    Every file is hashed, which takes a few milliseconds.
    """
    try:
        name, stated = _read_marker(directory)
    except (OSError, ValueError):
        return f"{MARKER} is missing or unreadable"
    if name != version():
        return f"{MARKER} names another version"
    actual = content.hashes(directory, content.files_below(directory))
    actual.pop(MARKER, None)
    differing = sorted(path for path in stated.keys() | actual.keys() if stated.get(path) != actual.get(path))
    if differing or not stated:
        return f"{len(differing)} of {len(stated)} files are missing or differ ({', '.join(differing[:3])})"
    return ""


def digest(directory: Path) -> str:
    """Return the digest (sha256, hex) of the files of an intact kit."""
    return content.digest(_read_marker(directory)[1])


def _read_marker(directory: Path) -> tuple[str, dict[str, str]]:
    """Return the version and the git hashes by path."""
    version, *lines = (directory / MARKER).read_text().splitlines()
    return version, {path: value for value, path in (line.split(" ", 1) for line in lines)}
