"""The layout of the shared volume: where checkpoints, assets, runs and logs lie.

New folders belong to whoever owns the volume, also when a container makes them as root. `python -m vla_common.volume
UID GID` prepares the volume for containers that run as that user. Only the standard library is needed.
"""

import argparse
import errno
import itertools
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vla_common import anchored, endings

DIRECTORIES = ("checkpoints", "hf", "datasets", "assets", "runs", "demonstrations", "notebooks", "logs")
VARIABLE = "VLALAB_VOLUME"
MORE_SPACE = f"free some space or set {VARIABLE} elsewhere"


def shown(path: Path) -> str:
    """Returns a path as a person is told it: relative to where the caller stands ($VLALAB_HERE) when it lies below."""
    here = os.environ.get("VLALAB_HERE")
    below = bool(here) and path.is_relative_to(here) and path != Path(here)
    return str(path.relative_to(here)) if below else str(path)


class VolumeError(OSError):
    """The volume is missing, read-only or full; the text says which and what to do."""


class Volume:
    """The shared volume under `root`, else under $VLALAB_VOLUME, else the repository's shared/volume.

    `volume.runs` and its siblings return the folder and make it when it is missing; `path(name)` only names it.
    """

    def __init__(self, root: str | os.PathLike | None = None):
        named = root or os.environ.get(VARIABLE) or _repository_volume()
        if not named:
            raise ValueError(f"no volume given and none beside {__file__}; set {VARIABLE} to the shared folder")
        self.root = Path(named).expanduser().absolute()

    def path(self, directory: str) -> Path:
        """Returns where a folder of the layout lies, without making it."""
        if directory not in DIRECTORIES:
            raise ValueError(f"the volume has no folder {directory!r}; it has {', '.join(DIRECTORIES)}")
        return self.root / directory

    @property
    def checkpoints(self) -> Path:
        return self._directory("checkpoints")

    @property
    def hf(self) -> Path:
        return self._directory("hf")

    @property
    def datasets(self) -> Path:
        return self._directory("datasets")

    @property
    def assets(self) -> Path:
        return self._directory("assets")

    @property
    def runs(self) -> Path:
        return self._directory("runs")

    @property
    def demonstrations(self) -> Path:
        return self._directory("demonstrations")

    @property
    def notebooks(self) -> Path:
        return self._directory("notebooks")

    @property
    def logs(self) -> Path:
        return self._directory("logs")

    def _directory(self, name: str) -> Path:
        with _entered(self.path(name), self.root):
            return self.path(name)

    def prepare(self, uid: int, gid: int) -> list[Path]:
        """Makes the volume and every folder of the layout writable for a user; returns those that changed hands.

        New folders are that user's. Root gives it the existing ones that are root's own and closed to it, without what
        lies in them. Raises VolumeError, with the command that helps, for any other folder that is closed to it.
        """
        given = []
        for path in (self.root, *map(self.path, DIRECTORIES)):
            is_new = not path.is_dir()
            with _entered(path, self.root) as directory:
                if (
                    (is_new or not _may_write(directory, uid, gid))
                    and _hand_over(directory, path, uid, gid)
                    and not is_new
                ):
                    given.append(path)
        return given

    def __repr__(self) -> str:
        return f"Volume({str(self.root)!r})"


def make_directory(path: Path) -> Path:
    """Returns `path` as an existing folder; what was missing of it belongs to the owner of what was there.

    Raises VolumeError where the place is read-only, full, not ours, taken by a file, or behind a link: below the
    volume's root links are not followed, since whoever may write there could lead root anywhere with one.
    """
    named = os.environ.get(VARIABLE) or _repository_volume()
    with _entered(path, Path(named).expanduser().absolute() if named else None):
        return path


def make_own_directory(path: Path) -> Path:
    """Returns `path` as `make_folder` does, for a folder that the caller alone fills: root refuses links in it.

    Raises VolumeError, naming the link.
    """
    make_directory(path)
    try:
        anchored.refuse_links(path)
    except anchored.LinkError as error:
        raise VolumeError(error.errno, f"{error.filename}: {error.strerror}; remove it") from error
    return path


def put_whole(directory: Path, make: Callable[[Path], object]) -> Path:
    """Returns `folder` as `make` fills it: beside its place, and put there when it is whole, instead of what was there.

    An interrupted call leaves nothing that looks finished, and the next one begins anew. What this replaces stays as
    NAME.before-N: it may be somebody's.
    """
    draft = directory.with_name(f".{directory.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        make(make_own_directory(draft))
        if os.path.lexists(directory):
            directory.rename(_free_name(directory))
        draft.rename(directory)
    except Exception as error:
        if endings.is_full_disk(error):  # said now: in a moment the space is free again
            text = f"{directory.parent} has no space left for {directory.name}: {MORE_SPACE}"
            raise VolumeError(errno.ENOSPC, text) from error
        raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return directory


def _free_name(directory: Path) -> Path:
    names = (directory.with_name(f"{directory.name}.before-{number}") for number in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))


@contextmanager
def _entered(path: Path, root: Path | None) -> Iterator[int]:
    """Yields a descriptor of a folder, made if missing. Links are followed down to `root`, and nowhere below it."""
    path = path.absolute()
    start = root if root and path.is_relative_to(root) else path
    while not start.exists():
        start = start.parent
    try:
        with anchored.directory(start, *path.relative_to(start).parts, make=True) as descriptor:
            yield descriptor
    except anchored.LinkError as error:
        raise VolumeError(
            error.errno,
            f"cannot make the folder {path}: at {error.filename} {error.strerror}; remove it (a folder elsewhere can "
            f"be mounted there instead), or set {VARIABLE} to a folder you can write to",
        ) from error
    except VolumeError:
        raise
    except OSError as error:
        raise VolumeError(
            error.errno, f"cannot make the folder {path}: {error.strerror}; set {VARIABLE} to a folder you can write to"
        ) from error


def _may_write(directory: int, uid: int, gid: int) -> bool:
    """Returns whether the mode bits let a user make files in the folder of a descriptor."""
    if uid == os.geteuid() != 0:
        return os.access(".", os.W_OK | os.X_OK, dir_fd=directory)  # knows access lists and read-only mounts too
    status = os.fstat(directory)
    if uid == 0:
        return True
    shift = 6 if status.st_uid == uid else 3 if status.st_gid == gid else 0
    return status.st_mode >> shift & (stat.S_IWOTH | stat.S_IXOTH) == stat.S_IWOTH | stat.S_IXOTH


def _hand_over(directory: int, path: Path, uid: int, gid: int) -> bool:
    """Gives a folder that is new, or root's, to a user; returns whether it was somebody else's."""
    status = os.fstat(directory)
    if (status.st_uid, status.st_gid) == (uid, gid) and _may_write(directory, uid, gid):
        return False
    try:
        if os.geteuid() != 0 or status.st_uid not in (0, uid):
            raise PermissionError(errno.EACCES, f"it belongs to user {status.st_uid}")
        anchored.give(directory, uid, gid, stat.S_IMODE(status.st_mode) | stat.S_IRWXU)
    except OSError as error:
        raise VolumeError(
            error.errno,
            f"user {uid} cannot write to {path} ({error.strerror}); run: sudo chown {uid}:{gid} {path}, or set "
            f"{VARIABLE} to a folder of your own",
        ) from error
    return True


def require_space(path: str | os.PathLike, size: int) -> None:
    """Raises VolumeError (ENOSPC) where fewer than `size` bytes are free at `path`, which need not exist yet."""
    place = Path(path).absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < size:
        raise VolumeError(
            errno.ENOSPC,
            f"{_size(free)} free at {place}; {_size(size)} needed for {path}: {MORE_SPACE}",
        )


def _repository_volume() -> Path | None:
    common = Path(__file__).resolve().parents[1]
    return common.parent / "volume" if (common.name, common.parent.name) == ("common", "shared") else None


def _size(size: int) -> str:
    """Returns bytes in the unit that tells them apart: "75 MB", "15.2 GB"."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def main(arguments: list[str] | None = None) -> int:
    """Prepares the volume for a user. Returns the exit status; prints what changed hands, or what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m vla_common.volume", description=main.__doc__)
    parser.add_argument("uid", type=int, help="user that the containers run as")
    parser.add_argument("gid", type=int, help="its group")
    options = parser.parse_args(arguments)
    try:
        for directory in Volume().prepare(options.uid, options.gid):
            print(f"{directory} now belongs to {options.uid}:{options.gid}")
    except OSError as error:
        print(error.strerror or error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
