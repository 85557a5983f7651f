"""Write the kit to a directory, name its version, and check whether a directory holds it whole."""

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
    """Returns every object and fixture of the kit by category name."""
    every = [*groceries.assets(), *dishes.assets(), *household.assets(), *fixtures.assets()]
    known = {asset.name: asset for asset in every}
    return known | {asset.name: asset for asset in variants.assets(known)}


def files() -> dict[str, bytes]:
    """Returns the whole kit, file contents by relative path, in sorted order."""
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
    """Returns the sha256 (hex) of the kit's sources: it names what `build` writes."""
    total = hashlib.sha256()
    sources = (path for path in Path(__file__).parent.iterdir() if path.suffix in (".py", ".yaml"))
    for source in sorted(sources):
        total.update(source.name.encode() + b"\0" + source.read_bytes())
    return total.hexdigest()


def build(directory: Path) -> None:
    """Writes the kit into `folder`, which is made if it does not exist (about 210 files, 3 MB, one second)."""
    content_by_path = files()
    directory.mkdir(parents=True, exist_ok=True)
    lines = [f"{version()}\n"]
    for path, data in content_by_path.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        lines.append(f"{content.git_sha1_of(data)} {path}\n")
    (directory / MARKER).write_text("".join(lines))


def damage(directory: Path) -> str:
    """Returns what keeps `folder` from being this version of the kit, in words; empty where nothing does.

    Every file is read: that takes some milliseconds, and no file that differs goes unnoticed.
    """
    try:
        name, stated = _read_marker(directory)
    except (OSError, ValueError):
        return f"{MARKER} is missing or unreadable"
    if name != version():
        return f"{MARKER} names another version"
    there = content.hashes(directory, content.files_below(directory))
    there.pop(MARKER, None)
    differing = sorted(path for path in stated.keys() | there.keys() if stated.get(path) != there.get(path))
    if not stated or differing:
        return f"{len(differing)} of {len(stated)} files are missing or differ ({', '.join(differing[:3])})"
    return ""


def digest(directory: Path) -> str:
    """Returns the sha256 (hex) that stands for the files of a kit that is whole: another byte, another digest."""
    return content.digest(_read_marker(directory)[1])


def _read_marker(directory: Path) -> tuple[str, dict[str, str]]:
    """Return the version, and git's hash by path."""
    version, *lines = (directory / MARKER).read_text().splitlines()
    return version, {path: value for value, path in (line.split(" ", 1) for line in lines)}
