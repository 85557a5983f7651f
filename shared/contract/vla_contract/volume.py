"""The layout of the shared volume: where checkpoints, assets, runs and logs lie.

New folders belong to whoever owns the volume, also when a container makes them as root.
"""

import errno
import os
import shutil
from pathlib import Path

FOLDERS = ("checkpoints", "hf", "datasets", "assets", "runs", "logs", "services")
VARIABLE = "VLALAB_VOLUME"


class VolumeError(OSError):
    """The volume is missing, read-only or full; the text says which and what to do."""


class Volume:
    """The shared volume under `root`, else under $VLALAB_VOLUME, else the repository's shared/volume.

    `volume.runs` and its siblings return the folder and make it when it is missing; `path(name)` only names it.
    """

    def __init__(self, root: str | os.PathLike | None = None):
        self.root = Path(root or os.environ.get(VARIABLE) or _repository_volume()).expanduser().absolute()

    def path(self, folder: str) -> Path:
        """Returns where a folder of the layout lies, without making it."""
        if folder not in FOLDERS:
            raise ValueError(f"the volume has no folder {folder!r}; it has {', '.join(FOLDERS)}")
        return self.root / folder

    @property
    def checkpoints(self) -> Path:
        return make_folder(self.path("checkpoints"))

    @property
    def hf(self) -> Path:
        return make_folder(self.path("hf"))

    @property
    def datasets(self) -> Path:
        return make_folder(self.path("datasets"))

    @property
    def assets(self) -> Path:
        return make_folder(self.path("assets"))

    @property
    def runs(self) -> Path:
        return make_folder(self.path("runs"))

    @property
    def logs(self) -> Path:
        return make_folder(self.path("logs"))

    @property
    def services(self) -> Path:
        return make_folder(self.path("services"))

    def __repr__(self) -> str:
        return f"Volume({str(self.root)!r})"


def make_folder(path: Path) -> Path:
    """Returns `path` as an existing folder; what was missing of it belongs to the owner of what was there.

    Raises VolumeError where the place is read-only, full, not ours or taken by a file.
    """
    if path.is_dir():
        return path
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        for folder in reversed(missing):
            _give_to_owner_of_parent(folder)
    except OSError as error:
        raise VolumeError(
            error.errno, f"cannot make the folder {path}: {error.strerror}; set {VARIABLE} to a folder you can write to"
        ) from error
    return path


def require_space(path: str | os.PathLike, size: int) -> None:
    """Raises VolumeError (ENOSPC) where fewer than `size` bytes are free at `path`, which need not exist yet."""
    place = Path(path).absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < size:
        raise VolumeError(
            errno.ENOSPC,
            f"{_gb(free)} free at {place}; {_gb(size)} needed for {path}: free some space or set {VARIABLE} elsewhere",
        )


def _give_to_owner_of_parent(folder: Path) -> None:
    if os.geteuid() == 0:
        owner = folder.parent.stat()
        if (owner.st_uid, owner.st_gid) != (0, 0):
            os.chown(folder, owner.st_uid, owner.st_gid)


def _repository_volume() -> Path:
    contract = Path(__file__).resolve().parents[1]
    if contract.name == "contract" and contract.parent.name == "shared":
        return contract.parent / "volume"
    raise ValueError(f"no volume given and none beside {contract}; set {VARIABLE} to the shared folder")


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
