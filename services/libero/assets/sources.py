"""Choose the asset directory of a run: a directory, the official files, the container image's, or the kit.

A directory's kind depends on its content: it is official if and only if it has LIBERO's official files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.libero.assets import content, kit, official, staging
from vla_common.volume import VolumeError, replace_directory

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

    Concurrent calls wait for each other.
    """
    target = Path(volume) / "assets" / f"libero-kit-{kit.version()[:12]}"

    def fill(draft: Path) -> None:
        kit.build(draft)
        staging.finish(draft)

    if kit.damage(target):
        try:
            with staging.file_lock(target.parent, "libero-kit"):
                if damage := kit.damage(target):  # else another process has written it meanwhile
                    existed = target.is_dir()
                    shutil.rmtree(target, ignore_errors=True)
                    replace_directory(target, fill)
                    if existed:
                        print(
                            f"assets: the kit in {target} was damaged ({damage}) and was created again",
                            file=sys.stderr,
                            flush=True,
                        )
        except VolumeError:
            raise
        except OSError as error:
            raise OSError(
                error.errno,
                f"cannot write the asset kit to {target}: {error.strerror or error}; free some space, make the volume "
                "writable, or set VLALAB_VOLUME to another directory",
            ) from error
    return AssetSource("kit", target, kit.digest(target))


def _insist_official(origin: str, volume: Path, reread: bool) -> AssetSource:
    shared = official.directory(volume)
    fault = f"; not found in {shared}"
    for directory in (shared, BAKED):
        if directory.is_dir() and any(directory.iterdir()):
            faulty = official.problems(directory, _cache(directory, volume), reread)
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
    faulty = official.problems(directory, cache, reread)
    if not faulty:
        return AssetSource("official", directory, official.digest())
    if (directory / official.MARKER).is_file():
        raise ValueError(
            f"{_count(faulty)} in {directory}, although {official.MARKER} lists them; run `./lab assets libero` to "
            "download them again"
        )
    missing = [path for path in LANDMARKS if not (directory / path).is_file()]
    if missing:
        inner = directory / "libero" / "libero" / "assets"
        hint = f"did you mean {str(inner)!r}?" if inner.is_dir() else "use LIBERO's `libero/libero/assets`, or `kit`"
        fault = "is not an asset directory" if directory.is_dir() else "does not exist"
        raise ValueError(
            f"{str(directory)!r} from {origin} {fault}: "
            f"{len(missing)} of {len(LANDMARKS)} expected files are missing ({_listing(missing)}); {hint}"
        )
    hashes = content.hashes(directory, content.files_below(directory), cache, reread)
    return AssetSource("folder", directory.resolve(), content.digest(hashes))


def _count(faulty: list[str]) -> str:
    return f"{len(faulty)} official asset files are missing or differ ({_listing(faulty)})"


def _listing(paths: list[str]) -> str:
    return ", ".join(paths[:3]) + (", …" if len(paths) > 3 else "")


def _cache(directory: Path, volume: Path) -> Path:
    """Return the cache file for the hashes of a directory."""
    name = hashlib.sha256(str(directory.absolute()).encode()).hexdigest()[:12]
    return volume / "assets" / f".libero-hashes-{name}.json"
