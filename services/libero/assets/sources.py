"""Chooses the asset folder of a run: a folder, the official files, the image's own, or the kit, made on first use."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.libero.assets import kit, official
from services.libero.assets.ownership import give_to_owner
from vla_contract.volume import make_folder

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


def resolve(flag: str | None, volume: Path) -> AssetSource:
    """Returns the asset folder to use, generating the kit if nothing else is there.

    Order: `flag`, the variable VLALAB_LIBERO_ASSETS, `volume`/assets/libero, the image's own, the kit. A flag or
    variable is a folder, or the word "official" or "kit" to insist on that source. Raises ValueError for a folder that
    is not an asset folder and for official files that are not there, OSError where the kit cannot be written.
    """
    for origin, value in (("the flag", flag), (f"the variable {VARIABLE}", os.environ.get(VARIABLE))):
        if value:
            return _named(origin, value, Path(volume))
    shared = official.folder(volume)
    if shared.exists():
        return _found("the shared volume", shared)
    if BAKED.is_dir() and any(BAKED.iterdir()):
        return _found("the image", BAKED)
    return ensure_kit(volume)


def ensure_kit(volume: Path) -> AssetSource:
    """Returns the kit below `volume`/assets, writing it there first if this version is not yet complete.

    Safe under concurrent calls: everyone writes a folder of their own and the first rename wins.
    """
    digest = kit.digest()
    target = Path(volume) / "assets" / f"libero-kit-{digest[:12]}"
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
    return AssetSource("kit", target, digest)


def _place(target: Path) -> None:
    parent = make_folder(target.parent)
    fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=parent))
    try:
        kit.build(fresh / "kit")
        give_to_owner(fresh, parent)
        if target.exists() and not kit.complete(target):  # somebody removed files from it
            os.rename(target, fresh / "damaged")
        try:
            os.rename(fresh / "kit", target)
        except OSError:
            if not kit.complete(target):  # else another process was first, with the same bytes
                raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _named(origin: str, value: str, volume: Path) -> AssetSource:
    if value == "kit":
        return ensure_kit(volume)
    if value == "official":
        places = (official.folder(volume), BAKED)
        complete = [place for place in places if (place / official.MARKER).is_file()]
        if not complete:
            raise ValueError(
                f"{origin} asks for the official assets, which are not complete in {places[0]}; "
                "fetch them with `invoke assets libero` or choose `kit`"
            )
        return _official(complete[0])
    return _folder(origin, Path(value).expanduser())


def _found(origin: str, place: Path) -> AssetSource:
    return _official(place) if (place / official.MARKER).is_file() else _folder(origin, place)


def _official(shared: Path) -> AssetSource:
    """Returns the downloaded files as a source, raising ValueError where some have gone since."""
    if missing := official.missing(shared):
        raise ValueError(
            f"{len(missing)} official asset files are gone from {shared} ({missing[0]}, ...); "
            "`invoke assets libero` fetches them again"
        )
    return AssetSource("official", shared, official.digest())


def _folder(origin: str, folder: Path) -> AssetSource:
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
    return AssetSource("folder", folder.resolve(), _fingerprint(folder))


def _fingerprint(folder: Path) -> str:
    """Returns the sha256 over names and sizes of all files and the text of the XML files (not of 100 MB of meshes)."""
    total = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        total.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\n".encode())
        if path.suffix == ".xml":
            total.update(path.read_bytes())
    return total.hexdigest()
