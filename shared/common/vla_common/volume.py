"""The layout of the shared volume: directories of checkpoints, assets, runs and logs.

New directories belong to the owner of the volume, also if a container creates them as root.
`python -m vla_common.volume UID GID` prepares the volume for containers that run as that user. Imports the standard
library only.
"""

from __future__ import annotations

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

from vla_common import anchored, entrypoint

DIRECTORIES = ("checkpoints", "hf", "datasets", "assets", "runs", "demonstrations", "notebooks", "logs")
VARIABLE = "VLALAB_VOLUME"
MORE_SPACE = f"free some space or set {VARIABLE} to another disk"


def display_path(path: Path) -> str:
    """Return a path for display: relative to the user's working directory ($VLALAB_HERE) if it is below it."""
    base = os.environ.get("VLALAB_HERE")
    below = bool(base) and path.is_relative_to(base) and path != Path(base)
    return str(path.relative_to(base)) if below else str(path)


class VolumeError(OSError):
    """The volume is missing, read-only or full; the message has the next step."""


class _Directory:
    """A directory of the layout as an attribute of a volume: created if it is missing."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, volume: Volume, owner: type) -> Path:
        return make_directory(volume.path(self.name), volume.root)


class Volume:
    """The shared volume under `root`, else under $VLALAB_VOLUME, else the repository's shared/volume.

    `volume.runs` and its siblings create a missing directory; `path(name)` does not.
    """

    def __init__(self, root: str | os.PathLike | None = None):
        named = root or os.environ.get(VARIABLE) or _repository_volume()
        if not named:
            raise ValueError(
                f"no volume configured, and none next to {__file__}; set {VARIABLE} to the shared directory"
            )
        self.root = Path(named).expanduser().absolute()

    def path(self, directory: str) -> Path:
        """Return the path of a directory of the layout, without creating it."""
        if directory not in DIRECTORIES:
            raise ValueError(f"the volume has no directory {directory!r}; choose one of {', '.join(DIRECTORIES)}")
        return self.root / directory

    checkpoints = _Directory()
    hf = _Directory()
    datasets = _Directory()
    assets = _Directory()
    runs = _Directory()
    demonstrations = _Directory()
    notebooks = _Directory()
    logs = _Directory()

    def prepare(self, uid: int, gid: int) -> list[Path]:
        """Make the volume and its directories writable for a user; return those whose owner changed.

        New directories belong to that user. Root also gives away its own directories that the user cannot write to, but
        not their content. Raises VolumeError, with the command that helps, for any other directory.
        """
        changed = []
        for path in (self.root, *map(self.path, DIRECTORIES)):
            is_new = not path.is_dir()
            with _entered(path, self.root) as directory:
                must_change = is_new or not _may_write(directory, uid, gid)
                if must_change and _hand_over(directory, path, uid, gid) and not is_new:
                    changed.append(path)
        return changed

    def __repr__(self) -> str:
        return f"Volume({str(self.root)!r})"


def make_directory(path: Path, root: Path | None = None) -> Path:
    """Create a directory and its missing parents, owned by the owner of the existing parent; return `path`.

    Raises VolumeError if it is read-only, full, another user's, a file, or behind a link: links below the volume's root
    are not followed, since any user with write access could redirect root with one. root: by default the one that
    `Volume()` has.
    """
    named = root or os.environ.get(VARIABLE) or _repository_volume()
    with _entered(path, Path(named).expanduser().absolute() if named else None):
        return path


def make_directory_without_links(path: Path) -> Path:
    """Create a directory that only the caller writes to; return `path`. As root, links in it are rejected.

    Raises VolumeError naming the link.
    """
    make_directory(path)
    try:
        anchored.require_no_links(path)
    except anchored.LinkError as error:
        raise VolumeError(error.errno, f"{error.filename}: {error.strerror}; remove it") from error
    return path


def replace_directory(directory: Path, make: Callable[[Path], object]) -> Path:
    """Write a directory atomically: `make` fills a draft next to it, which then replaces it; return the directory.

    An interrupted call leaves no incomplete directory. The replaced one is kept as NAME.before-N.
    """
    draft = directory.with_name(f".{directory.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        make(make_directory_without_links(draft))
        if os.path.lexists(directory):
            names = (directory.with_name(f"{directory.name}.before-{number}") for number in itertools.count(1))
            directory.rename(next(name for name in names if not os.path.lexists(name)))
        draft.rename(directory)
    except Exception as error:
        if entrypoint.is_full_disk(error):  # reported now: deleting the draft frees the space
            text = f"{directory.parent} has no space left for {directory.name}: {MORE_SPACE}"
            raise VolumeError(errno.ENOSPC, text) from error
        raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return directory


@contextmanager
def _entered(path: Path, root: Path | None) -> Iterator[int]:
    """Yield a descriptor of a directory, created if missing. Links are followed above `root`, not below it."""
    path = path.absolute()
    start = root if root and path.is_relative_to(root) else path
    while not start.exists():
        start = start.parent
    try:
        with anchored.directory(start, *path.relative_to(start).parts, make=True) as descriptor:
            yield descriptor
    except VolumeError:
        raise
    except OSError as error:
        reason, remedy = error.strerror, f"set {VARIABLE} to a directory you can write to"
        if isinstance(error, anchored.LinkError):
            reason = f"at {error.filename} {error.strerror}"
            remedy = f"remove it (or mount a directory there instead), or {remedy}"
        raise VolumeError(error.errno, f"cannot create the directory {path}: {reason}; {remedy}") from error


def _may_write(directory: int, uid: int, gid: int) -> bool:
    """Return whether a user can create files in the directory of a descriptor, by its mode bits."""
    if uid == os.geteuid() != 0:
        return os.access(".", os.W_OK | os.X_OK, dir_fd=directory)  # includes ACLs and read-only mounts
    status = os.fstat(directory)
    if uid == 0:
        return True
    shift = 6 if status.st_uid == uid else 3 if status.st_gid == gid else 0
    return status.st_mode >> shift & (stat.S_IWOTH | stat.S_IXOTH) == stat.S_IWOTH | stat.S_IXOTH


def _hand_over(directory: int, path: Path, uid: int, gid: int) -> bool:
    """Change the owner of a directory that is new or root's; return whether it had another owner."""
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
            f"{VARIABLE} to a directory of your own",
        ) from error
    return True


def require_space(path: str | os.PathLike, size: int) -> None:
    """Raise VolumeError (ENOSPC) if fewer than `size` bytes are free at `path`, which need not exist yet."""
    existing = Path(path).absolute()
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < size:
        raise VolumeError(
            errno.ENOSPC,
            f"{_size(free)} free at {existing}; {_size(size)} needed for {path}: {MORE_SPACE}",
        )


def _repository_volume() -> Path | None:
    common = Path(__file__).resolve().parents[1]
    return common.parent / "volume" if (common.name, common.parent.name) == ("common", "shared") else None


def _size(size: int) -> str:
    """Return a size as text: "75 MB", "15.2 GB"."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def main(arguments: list[str] | None = None) -> int:
    """Prepare the volume for a user: print the directories whose owner changed. Return the exit status."""
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
