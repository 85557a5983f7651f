"""Git hashes of asset files, cached by file metadata so that a second check is quick.

A file is hashed again if its size, inode, mtime or ctime has changed; no program can set the ctime. Files written
within the last two seconds are not cached: they may change within one tick of the file system's clock.
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

SETTLED_NS = 2_000_000_000
CACHE_BYTES = 4 << 20  # longer files are not a cache of this module


@dataclass(frozen=True)
class AssetFile:
    """One file of a list: path below the asset directory, git blob sha1 (hex), size in bytes."""

    path: str
    sha1: str
    size: int


def read_list(name: str) -> tuple[AssetFile, ...]:
    """Return the entries of a list in this package."""
    text = (Path(__file__).parent / name).read_text()
    rows = [line.split(" ", 2) for line in text.splitlines() if not line.startswith("#")]
    return tuple(AssetFile(path, sha1, int(size)) for sha1, size, path in rows)


def git_sha1(content: bytes) -> str:
    """Return the git hash (hex) of these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def digest(hashes: Mapping[str, str]) -> str:
    """Return the sha256 (hex) of a directory: over the hash and path of every file, in the paths' order."""
    return hashlib.sha256("".join(f"{hashes[path]} {path}\n" for path in sorted(hashes)).encode()).hexdigest()


def files_below(directory: Path) -> list[str]:
    """Return the paths of all files below a directory, relative to it, in order."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def differing(
    directory: Path, entries: Iterable[AssetFile], cache: Path | None = None, reread: bool = False
) -> list[AssetFile]:
    """Return the entries that are missing in `directory` or differ; `cache` and `reread` as in `hashes`."""
    entries = tuple(entries)
    actual = hashes(directory, [entry.path for entry in entries], cache, reread)
    return [entry for entry in entries if actual.get(entry.path) != entry.sha1]


def hashes(directory: Path, paths: Iterable[str], cache: Path | None = None, reread: bool = False) -> dict[str, str]:
    """Return the git hashes of the readable files among `paths` below `directory`.

    `cache` is a file with earlier results; it is updated if possible. `reread` ignores it and hashes every file.
    """
    cached = {} if cache is None or reread else _read_cache(cache)
    by_path, fresh = {}, {}
    for path in paths:
        try:
            status = (directory / path).stat()
            if not stat.S_ISREG(status.st_mode):  # do not wait for a pipe
                continue
            stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
            entry = cached.get(path)
            is_cached = isinstance(entry, list) and entry[:-1] == stamp and isinstance(entry[-1], str)
            by_path[path] = entry[-1] if is_cached else git_sha1((directory / path).read_bytes())
        except OSError:
            continue
        if time.time_ns() - max(stamp[1:3]) > SETTLED_NS:
            fresh[path] = [*stamp, by_path[path]]
    if cache is not None and fresh != cached:
        try:
            handle, name = tempfile.mkstemp(dir=cache.parent, prefix=f"{cache.name}.")
            with open(handle, "w") as file:
                json.dump(fresh, file)
                os.fchmod(file.fileno(), 0o644)
            give_to_owner(Path(name), cache.parent)
            os.replace(name, cache)
        except OSError:  # a read-only volume
            pass
    return by_path


def _read_cache(cache: Path) -> dict:
    """Return the cache; empty if it is missing or invalid."""
    try:
        handle = os.open(cache, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # neither a link nor a pipe
        with open(handle, "rb") as file:
            cached = json.loads(file.read(CACHE_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return cached if isinstance(cached, dict) else {}
