"""Choose the asset directory of a run: a directory, the official files, the container image's, or the kit.

A directory's kind depends on its content: it is official if and only if it has LIBERO's official files.
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
BAKED = Path("/opt/libero-assets")  # assets in the container image: official files, another directory, or none
# one file of each part that LIBERO's tasks load; a directory with all of them counts as an asset directory
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
    """An asset directory, its kind and its digest (sha256 of the content, hex)."""

    kind: Literal["folder", "official", "kit"]
    path: Path
    digest: str


def resolve(flag: str | None, volume: Path, reread: bool = False) -> AssetSource:
    """Return the asset directory to use, generating the kit if nothing else exists.

    Order: `flag`, the variable VLALAB_LIBERO_ASSETS, `volume`/assets/libero, the container image's, the kit. A flag or
    variable is a directory, or "official" or "kit" to require that source. Every file's hash is checked; `reread`
    hashes even unchanged files again. Raises ValueError if the directory is not an asset directory or official files
    are missing or damaged, OSError if the kit cannot be written.
    """
    volume = Path(volume)
    for origin, value in (("the flag", flag), (f"the variable {VARIABLE}", os.environ.get(VARIABLE))):
        if value == "kit":
            return ensure_kit(volume)
        if value == "official":
            return _insist_official(origin, volume, reread)
        if value:
            return _identify(origin, Path(value).expanduser(), volume, reread)
    shared = official.directory(volume)
    if shared.exists():
        return _identify("the shared volume", shared, volume, reread)
    if BAKED.is_dir() and any(BAKED.iterdir()):
        return _identify("the image", BAKED, volume, reread)
    return ensure_kit(volume)


def ensure_kit(volume: Path) -> AssetSource:
    """Return the kit below `volume`/assets, writing it first if this version is missing or damaged.

    Concurrent calls are safe: every process writes its own directory, and the first rename wins.
    """
    target = Path(volume) / "assets" / f"libero-kit-{kit.version()[:12]}"
    if kit.damage(target):
        try:
            _write_kit(target)
        except OSError as error:
            reason = error.strerror or str(error)
            raise OSError(
                error.errno,
                f"cannot write the asset kit to {target}: {reason}; free some space, make the volume writable, "
                "or set VLALAB_VOLUME to another directory",
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
        print(f"assets: the kit in {target} was damaged ({damage}) and was created again", file=sys.stderr, flush=True)


def _insist_official(origin: str, volume: Path, reread: bool) -> AssetSource:
    directories = [
        candidate
        for candidate in (official.directory(volume), BAKED)
        if candidate.is_dir() and any(candidate.iterdir())
    ]
    fault = f"; not found in {official.directory(volume)}"
    for directory in directories:
        faulty = official.problems(directory, cache=_cache(directory, volume), reread=reread)
        if not faulty:
            return AssetSource("official", directory, official.digest())
        fault = f"; {_count(faulty)} in {directory}"
    raise ValueError(
        f"{origin} requests the official assets{fault}; run `./lab assets libero` to download them, or use `kit`"
    )


def _identify(origin: str, directory: Path, volume: Path, reread: bool) -> AssetSource:
    """Return a directory with its kind, which depends on its files.

    Raises ValueError if official files were damaged after the download, or it is not an asset directory.
    """
    cache = _cache(directory, volume)
    faulty = official.problems(directory, cache=cache, reread=reread)
    if not faulty:
        return AssetSource("official", directory, official.digest())
    if (directory / official.MARKER).is_file():
        raise ValueError(
            f"{_count(faulty)} in {directory}, although {official.MARKER} lists them; run `./lab assets libero` to "
            "download them again"
        )
    if not directory.is_dir():
        raise ValueError(
            f"asset directory {str(directory)!r} from {origin} does not exist; expected a directory with LIBERO's "
            "assets (scenes/, textures/, ...), or `kit`"
        )
    if missing := [path for path in LANDMARKS if not (directory / path).is_file()]:
        inner = directory / "libero" / "libero" / "assets"
        hint = "use LIBERO's directory `libero/libero/assets`, or `kit`"
        if inner.is_dir():
            hint = f"did you mean {str(inner)!r}?"
        listing = ", ".join(missing[:3]) + (" ..." if len(missing) > 3 else "")
        raise ValueError(
            f"{str(directory)!r} from {origin} is not an asset directory: "
            f"{len(missing)} of {len(LANDMARKS)} expected files are missing ({listing}); {hint}"
        )
    hashes = content.hashes(directory, content.files_below(directory), cache, reread)
    return AssetSource("folder", directory.resolve(), content.digest(hashes))


def _count(faulty: list[str]) -> str:
    listing = ", ".join(faulty[:3]) + (", …" if len(faulty) > 3 else "")
    return f"{len(faulty)} official asset files are missing or differ ({listing})"


def _cache(directory: Path, volume: Path) -> Path:
    """Return the cache file for the hashes of a directory."""
    name = hashlib.sha256(str(directory.absolute()).encode()).hexdigest()[:12]
    return volume / "assets" / f".libero-hashes-{name}.json"
