"""Choose the asset directory of a run: a directory, the official files, the image's own, or the kit.

The content decides what a directory is: LIBERO's official files are official wherever they are, and nothing else is.
"""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.libero.assets import content, kit, official, staging
from vla_common.volume import make_directory

VARIABLE = "VLALAB_LIBERO_ASSETS"
BAKED = Path("/opt/libero-assets")  # what the image was built with: official files, somebody's folder, or nothing
# one file of each part that LIBERO's tasks load from; a folder with all of them is taken for an asset folder
LANDMARKS = (
    "scenes/libero_tabletop_base_style.xml",
    "scenes/libero_floor_base_style.xml",
    "scenes/libero_kitchen_tabletop_base_style.xml",
    "scenes/libero_living_room_tabletop_base_style.xml",
    "scenes/libero_study_base_style.xml",
    "stable_hope_objects/cream_cheese/cream_cheese.xml",
    "stable_scanned_objects/akita_black_bowl/akita_black_bowl.xml",
    "turbosquid_objects/wine_rack/wine_rack.xml",
    "articulated_objects/wooden_cabinet.xml",
    "articulated_objects/flat_stove.xml",
    "textures/light-gray-floor-tile.png",
)


@dataclass(frozen=True)
class AssetSource:
    """An asset folder and what it is: `digest` (sha256, hex) changes when the folder's content does."""

    kind: Literal["folder", "official", "kit"]
    path: Path
    digest: str


def resolve(flag: str | None, volume: Path, whole: bool = False) -> AssetSource:
    """Return the asset directory to use, generating the kit if nothing else exists.

    Order: `flag`, the variable VLALAB_LIBERO_ASSETS, `volume`/assets/libero, the image's own, the kit. A flag or
    variable is a folder, or the word "official" or "kit" to insist on that source. Every file is held against its hash;
    `whole` reads also those that have not changed since they were last read. Raises ValueError for a folder that
    is not an asset folder and for official files that are missing or damaged, OSError where the kit cannot be written.
    """
    volume = Path(volume)
    for origin, value in (("the flag", flag), (f"the variable {VARIABLE}", os.environ.get(VARIABLE))):
        if value == "kit":
            return ensure_kit(volume)
        if value == "official":
            return _insist_official(origin, volume, whole)
        if value:
            return _identify(origin, Path(value).expanduser(), volume, whole)
    shared = official.directory(volume)
    if shared.exists():
        return _identify("the shared volume", shared, volume, whole)
    if BAKED.is_dir() and any(BAKED.iterdir()):
        return _identify("the image", BAKED, volume, whole)
    return ensure_kit(volume)


def ensure_kit(volume: Path) -> AssetSource:
    """Return the kit below `volume`/assets, writing it first if this version is missing or damaged.

    Safe under concurrent calls: every process writes a directory of its own and the first rename wins.
    """
    target = Path(volume) / "assets" / f"libero-kit-{kit.version()[:12]}"
    if kit.damage(target):
        try:
            _write_kit(target)
        except OSError as error:
            reason = error.strerror or str(error)
            raise OSError(
                error.errno,
                f"cannot write the asset kit to {target}: {reason}; "
                "free some space or make the volume writable, or set VLALAB_VOLUME to another folder",
            ) from error
    return AssetSource("kit", target, kit.digest(target))


def _write_kit(target: Path) -> None:
    parent = make_directory(target.parent)
    with staging.building_site(target) as site:
        fresh = site / "kit"
        kit.build(fresh)
        staging.give_to_owner(fresh, parent)
        staging.sync_tree(fresh)
        damage = kit.damage(target) if os.path.lexists(target) else ""
        if damage:
            os.rename(target, site / "damaged")
        try:
            staging.rename(fresh, target)
        except OSError:
            if kit.damage(target):  # else another process was first, with the same bytes
                raise
    if damage:
        print(f"assets: the kit in {target} was damaged ({damage}); it was made anew", file=sys.stderr, flush=True)


def _insist_official(origin: str, volume: Path, whole: bool) -> AssetSource:
    directories = [one for one in (official.directory(volume), BAKED) if one.is_dir() and any(one.iterdir())]
    fault = f"; there are none in {official.directory(volume)}"
    for directory in directories:
        wrong = official.problems(directory, cache=_cache(directory, volume), whole=whole)
        if not wrong:
            return AssetSource("official", directory, official.digest())
        fault = f"; {_count(wrong)} in {directory}"
    raise ValueError(
        f"{origin} asks for the official assets{fault}; fetch them with `./lab assets libero` or choose `kit`"
    )


def _identify(origin: str, directory: Path, volume: Path, whole: bool) -> AssetSource:
    """Return a directory as what its files are.

    Raises ValueError where official ones were damaged since they came, and for what is no asset directory.
    """
    cache = _cache(directory, volume)
    wrong = official.problems(directory, cache=cache, whole=whole)
    if not wrong:
        return AssetSource("official", directory, official.digest())
    if (directory / official.MARKER).is_file():
        raise ValueError(
            f"{_count(wrong)} in {directory}, which {official.MARKER} says were downloaded there; "
            "`./lab assets libero` fetches them again"
        )
    if not directory.is_dir():
        raise ValueError(
            f"{origin} names the asset folder {str(directory)!r}, which does not exist; "
            "give a folder with LIBERO's assets (scenes/, textures/, ...), or `kit`"
        )
    if missing := [path for path in LANDMARKS if not (directory / path).is_file()]:
        inner = directory / "libero" / "libero" / "assets"
        hint = "give LIBERO's folder `libero/libero/assets`, or `kit`"
        if inner.is_dir():
            hint = f"did you mean {str(inner)!r}?"
        shown = ", ".join(missing[:3]) + (" ..." if len(missing) > 3 else "")
        raise ValueError(
            f"{origin} names {str(directory)!r}, which is not an asset folder: "
            f"{len(missing)} of {len(LANDMARKS)} expected files are missing ({shown}); {hint}"
        )
    hashes = content.hashes(directory, content.files_below(directory), cache, whole)
    return AssetSource("folder", directory.resolve(), content.digest(hashes))


def _count(wrong: list[str]) -> str:
    shown = ", ".join(wrong[:3]) + (", …" if len(wrong) > 3 else "")
    return f"{len(wrong)} official asset files are missing or differ ({shown})"


def _cache(directory: Path, volume: Path) -> Path:
    """Return the file that the hashes of a directory's files are cached in."""
    name = hashlib.sha256(str(directory.absolute()).encode()).hexdigest()[:12]
    return volume / "assets" / f".libero-hashes-{name}.json"
