"""Writes the kit to a folder, and names its version."""

from __future__ import annotations

import hashlib
import io
from functools import lru_cache
from pathlib import Path

from services.libero.assets.kit import dishes, fixtures, groceries, household, rooms
from services.libero.assets.kit.mjcf import Asset

MARKER = "KIT"  # file with the digest and the number of files, written last: a folder without it is not finished


def catalogue() -> dict[str, Asset]:
    """Returns every object and fixture of the kit by category name."""
    every = [*groceries.assets(), *dishes.assets(), *household.assets(), *fixtures.assets()]
    return {asset.name: asset for asset in every}


def files() -> dict[str, bytes]:
    """Returns the whole kit, file contents by relative path, in sorted order."""
    content: dict[str, object] = rooms.files()
    for asset in catalogue().values():
        content |= asset.files()
    return {path: _encoded(content[path]) for path in sorted(content)}


def _encoded(value) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    buffer = io.BytesIO()
    value.save(buffer, "PNG", compress_level=3)
    return buffer.getvalue()


@lru_cache(maxsize=1)
def digest() -> str:
    """Returns the sha256 (hex) of the kit's sources: it names the version that `build` writes."""
    total = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        total.update(source.name.encode() + b"\0" + source.read_bytes())
    return total.hexdigest()


def build(folder: Path) -> None:
    """Writes the kit into `folder`, which is made if it does not exist (about 160 files, 2.5 MB, one second)."""
    content_by_path = files()
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in content_by_path.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    (folder / MARKER).write_text(f"{digest()} {len(content_by_path)}\n")


def complete(folder: Path) -> bool:
    """Returns whether `folder` holds all files of this version of the kit."""
    marker = folder / MARKER
    if not marker.is_file():
        return False
    name, count = marker.read_text().split()
    return name == digest() and sum(p.is_file() for p in folder.rglob("*")) == int(count) + 1
