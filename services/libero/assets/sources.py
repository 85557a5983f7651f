"""Chooses the asset folder of a run: a folder, the official files, the image's own, or the kit, made on first use.

What a folder is, its content says: LIBERO's official files are official wherever they lie, and nothing else is.
"""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.libero.assets import content, kit, official, placing
from services.libero.assets.ownership import give_to_owner
from vla_common.volume import make_folder

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
    """Returns the asset folder to use, generating the kit if nothing else is there.

    Order: `flag`, the variable VLALAB_LIBERO_ASSETS, `volume`/assets/libero, the image's own, the kit. A flag or
    variable is a folder, or the word "official" or "kit" to insist on that source. Every file is held against its hash;
    `whole` reads also those that have not changed since they were last read. Raises ValueError for a folder that
    is not an asset folder and for official files that are missing or damaged, OSError where the kit cannot be written.
    """
    volume = Path(volume)
    for origin, value in (("the flag", flag), (f"the variable {VARIABLE}", os.environ.get(VARIABLE))):
        if value:
            return _named(origin, value, volume, whole)
    shared = official.folder(volume)
    if shared.exists():
        return _found("the shared volume", shared, volume, whole)
    if BAKED.is_dir() and any(BAKED.iterdir()):
        return _found("the image", BAKED, volume, whole)
    return ensure_kit(volume)


def ensure_kit(volume: Path) -> AssetSource:
    """Returns the kit below `volume`/assets, writing it there first if this version is missing or damaged.

    Safe under concurrent calls: everyone writes a folder of their own and the first rename wins.
    """
    target = Path(volume) / "assets" / f"libero-kit-{kit.version()[:12]}"
    if not kit.complete(target):
        try:
            _place(target)
        except OSError as error:
            reason = error.strerror or str(error)
            raise OSError(
                error.errno,
                f"cannot write the asset kit to {target}: {reason}; "
                "free some space or make the volume writable, or set VLALAB_VOLUME to another folder",
            ) from error
    return AssetSource("kit", target, kit.digest(target))


def _place(target: Path) -> None:
    parent = make_folder(target.parent)
    with placing.building_site(target) as site:
        fresh = site / "kit"
        kit.build(fresh)
        give_to_owner(fresh, parent)
        placing.sync_tree(fresh)
        damage = kit.damage(target) if os.path.lexists(target) else ""
        if damage:
            os.rename(target, site / "damaged")
        try:
            placing.rename(fresh, target)
        except OSError:
            if not kit.complete(target):  # else another process was first, with the same bytes
                raise
    if damage:
        print(f"assets: the kit in {target} was damaged ({damage}); it was made anew", file=sys.stderr, flush=True)


def _named(origin: str, value: str, volume: Path, whole: bool) -> AssetSource:
    if value == "kit":
        return ensure_kit(volume)
    if value != "official":
        return _found(origin, Path(value).expanduser(), volume, whole)
    places = [place for place in (official.folder(volume), BAKED) if place.is_dir() and any(place.iterdir())]
    for place in places:
        if not (wrong := official.problems(place, notes=_notes(place, volume), whole=whole)):
            return AssetSource("official", place, official.digest())
    fault = f"; {_count(wrong)} in {place}" if places else f"; there are none in {official.folder(volume)}"
    raise ValueError(
        f"{origin} asks for the official assets{fault}; fetch them with `./lab assets libero` or choose `kit`"
    )


def _found(origin: str, place: Path, volume: Path, whole: bool) -> AssetSource:
    """Returns a folder as what its files are. Raises ValueError where official ones were damaged since they came."""
    notes = _notes(place, volume)
    wrong = official.problems(place, notes=notes, whole=whole)
    if not wrong:
        return AssetSource("official", place, official.digest())
    if (place / official.MARKER).is_file():
        raise ValueError(
            f"{_count(wrong)} in {place}, which {official.MARKER} says were downloaded there; "
            "`./lab assets libero` fetches them again"
        )
    return _folder(origin, place, notes, whole)


def _count(wrong: list[str]) -> str:
    shown = ", ".join(wrong[:3]) + (", …" if len(wrong) > 3 else "")
    return f"{len(wrong)} official asset files are missing or differ ({shown})"


def _notes(place: Path, volume: Path) -> Path:
    """Returns where the hashes of a folder's files are remembered."""
    name = hashlib.sha256(str(place.absolute()).encode()).hexdigest()[:12]
    return volume / "assets" / f".libero-hashes-{name}.json"


def _folder(origin: str, folder: Path, notes: Path, whole: bool) -> AssetSource:
    """Returns `folder` as a source, raising ValueError that says what it lacks and what to do."""
    if not folder.is_dir():
        raise ValueError(
            f"{origin} names the asset folder {str(folder)!r}, which does not exist; "
            "give a folder with LIBERO's assets (scenes/, textures/, ...), or `kit`"
        )
    missing = [path for path in LANDMARKS if not (folder / path).is_file()]
    if missing:
        inner = folder / "libero" / "libero" / "assets"
        hint = (
            f"did you mean {str(inner)!r}?"
            if inner.is_dir()
            else "give LIBERO's folder `libero/libero/assets`, or `kit`"
        )
        shown = ", ".join(missing[:3]) + (" ..." if len(missing) > 3 else "")
        raise ValueError(
            f"{origin} names {str(folder)!r}, which is not an asset folder: "
            f"{len(missing)} of {len(LANDMARKS)} expected files are missing ({shown}); {hint}"
        )
    found = content.hashes(folder, content.files_below(folder), notes, whole)
    return AssetSource("folder", folder.resolve(), content.digest(found))
