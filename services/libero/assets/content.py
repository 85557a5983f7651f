"""What files hold, by git's hash of them; remembered by what the kernel says of a file, so that a second look is quick.

A file is read again when its size, inode, time of change or time of status change is another: the last of these no
program can set. What was written within the last two seconds is not remembered, since it may change within one tick of
the file system's clock.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from services.libero.assets.ownership import give_to_owner

CHUNK = 1 << 18
SETTLED_NS = 2_000_000_000
NOTES_BYTES = 4 << 20  # longer notes are none of ours


def git_sha1(content: Path) -> str:
    """Returns the hash (hex) that git gives the file's content. Raises OSError where it cannot be read."""
    with content.open("rb") as stream:
        total = hashlib.sha1(f"blob {os.fstat(stream.fileno()).st_size}\0".encode())
        while piece := stream.read(CHUNK):
            total.update(piece)
    return total.hexdigest()


def git_sha1_of(content: bytes) -> str:
    """Returns the hash (hex) that git gives these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def digest(hashes: Mapping[str, str]) -> str:
    """Returns the sha256 (hex) that stands for a folder: over the hash and path of every file, in the paths' order."""
    return hashlib.sha256("".join(f"{hashes[path]} {path}\n" for path in sorted(hashes)).encode()).hexdigest()


def files_below(folder: Path) -> list[str]:
    """Returns the paths of all files below a folder, relative to it, in order."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def hashes(folder: Path, paths: Iterable[str], notes: Path | None = None, whole: bool = False) -> dict[str, str]:
    """Returns git's hash of those files below `folder` that are there and can be read.

    `notes` is a file with what was found earlier; it is brought up to date where it can be written. `whole` reads
    every file all the same.
    """
    known = {} if notes is None or whole else _read(notes)
    found, fresh = {}, {}
    for path in paths:
        if (stamp := _stamp(folder / path)) is None:
            continue
        value = _remembered(known.get(path), stamp) or _hash(folder / path)
        if value is None:
            continue
        found[path] = value
        if time.time_ns() - max(stamp[1:3]) > SETTLED_NS:
            fresh[path] = [*stamp, found[path]]
    if notes is not None and fresh != known:
        _write(notes, fresh)
    return found


def _stamp(path: Path) -> list[int] | None:
    """Returns size, times (ns) and inode of a plain file, None for anything else: a pipe is not waited for."""
    try:
        status = path.stat()
    except OSError:
        return None
    plain = stat.S_ISREG(status.st_mode)
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino] if plain else None


def _remembered(note: object, stamp: list[int]) -> str | None:
    matches = isinstance(note, list) and note[:-1] == stamp and isinstance(note[-1], str)
    return note[-1] if matches else None


def _hash(path: Path) -> str | None:
    try:
        return git_sha1(path)
    except OSError:
        return None


def _read(notes: Path) -> dict:
    """Returns the notes, empty where they are missing or not readable as such: then everything is read again."""
    try:
        handle = os.open(notes, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return {}
            found = json.loads(file.read(NOTES_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(notes: Path, fresh: dict) -> None:
    """Replaces the notes in one step. A volume that cannot be written costs a reading next time, no more."""
    try:
        handle, name = tempfile.mkstemp(dir=notes.parent, prefix=f"{notes.name}.")
    except OSError:
        return
    try:
        with open(handle, "w") as file:
            json.dump(fresh, file)
            os.fchmod(file.fileno(), 0o644)
        give_to_owner(Path(name), notes.parent)
        os.replace(name, notes)
    except OSError:
        Path(name).unlink(missing_ok=True)
