"""Content of asset files by git's hash; cached by what the kernel says of a file, so that a second look is quick.

A file is read again when its size, inode, time of change or time of status change is another: the last of these no
program can set. What was written within the last two seconds is not cached, since it may change within one tick of
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
from dataclasses import dataclass
from pathlib import Path

from services.libero.assets.staging import give_to_owner

CHUNK = 1 << 18
SETTLED_NS = 2_000_000_000
CACHE_BYTES = 4 << 20  # a longer cache is none of ours


@dataclass(frozen=True)
class Entry:
    """One file of a list: path below the asset directory, git blob sha1 (hex), size in bytes."""

    path: str
    sha1: str
    size: int


def read_list(name: str) -> tuple[Entry, ...]:
    """Return the files that a list in this package names."""
    text = (Path(__file__).parent / name).read_text()
    rows = [line.split(" ", 2) for line in text.splitlines() if not line.startswith("#")]
    return tuple(Entry(path, sha1, int(size)) for sha1, size, path in rows)


def git_sha1(path: Path) -> str:
    """Return the hash (hex) that git gives the file's content. Raises OSError where it cannot be read."""
    with path.open("rb") as stream:
        total = hashlib.sha1(f"blob {os.fstat(stream.fileno()).st_size}\0".encode())
        while piece := stream.read(CHUNK):
            total.update(piece)
    return total.hexdigest()


def git_sha1_of(content: bytes) -> str:
    """Return the hash (hex) that git gives these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def digest(hashes: Mapping[str, str]) -> str:
    """Return the sha256 (hex) of a directory: over the hash and path of every file, in the paths' order."""
    return hashlib.sha256("".join(f"{hashes[path]} {path}\n" for path in sorted(hashes)).encode()).hexdigest()


def files_below(directory: Path) -> list[str]:
    """Return the paths of all files below a directory, relative to it, in order."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def differing(directory: Path, entries: Iterable[Entry], cache: Path | None = None, whole: bool = False) -> list[Entry]:
    """Return those of the files that `folder` lacks or has with another content; `cache`, `whole` as in `hashes`."""
    entries = tuple(entries)
    found = hashes(directory, [entry.path for entry in entries], cache, whole)
    return [entry for entry in entries if found.get(entry.path) != entry.sha1]


def hashes(directory: Path, paths: Iterable[str], cache: Path | None = None, whole: bool = False) -> dict[str, str]:
    """Return git's hash of those files below `folder` that exist and can be read.

    `cache` is a file with earlier results; it is updated where it can be written. `whole` reads every file all the
    same.
    """
    known = {} if cache is None or whole else _read_cache(cache)
    found, fresh = {}, {}
    for path in paths:
        try:
            status = (directory / path).stat()
            if not stat.S_ISREG(status.st_mode):  # a pipe is not waited for
                continue
            stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
            entry = known.get(path)
            is_known = isinstance(entry, list) and entry[:-1] == stamp and isinstance(entry[-1], str)
            found[path] = entry[-1] if is_known else git_sha1(directory / path)
        except OSError:
            continue
        if time.time_ns() - max(stamp[1:3]) > SETTLED_NS:
            fresh[path] = [*stamp, found[path]]
    if cache is not None and fresh != known:
        _write_cache(cache, fresh)
    return found


def _read_cache(cache: Path) -> dict:
    """Return the cache, empty where it is missing or not readable as such: then everything is read again."""
    try:
        handle = os.open(cache, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return {}
            known = json.loads(file.read(CACHE_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}


def _write_cache(cache: Path, fresh: dict) -> None:
    """Replace the cache in one step. A volume that cannot be written costs a reading next time, no more."""
    try:
        handle, name = tempfile.mkstemp(dir=cache.parent, prefix=f"{cache.name}.")
    except OSError:
        return
    try:
        with open(handle, "w") as file:
            json.dump(fresh, file)
            os.fchmod(file.fileno(), 0o644)
        give_to_owner(Path(name), cache.parent)
        os.replace(name, cache)
    except OSError:
        Path(name).unlink(missing_ok=True)
