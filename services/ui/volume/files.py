"""Open files of runs and reports by descriptor, without following links below the volume's root.

Every container may write to the volume; its links must not make this server read other files.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from starlette.responses import FileResponse

from services.ui.site.requests import NotFound
from vla_common import anchored
from vla_evaluation.config import LATEST
from vla_evaluation.runs.directories import STORE, by_beginning

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # valid name of a run
MEDIA = {".html": "text/html; charset=utf-8", ".mp4": "video/mp4", ".jpg": "image/jpeg", ".png": "image/png"}


class OpenFile(FileResponse):
    """Response with an open file or its requested ranges. Closes the descriptor afterwards."""

    def __init__(self, descriptor: int, name: str, headers: Mapping[str, str] | None = None):
        self.descriptor = descriptor
        # the file may be replaced: browsers have to revalidate
        headers = {"cache-control": "no-cache", **(headers or {})}
        kind = MEDIA[Path(name).suffix]
        super().__init__(f"/proc/self/fd/{descriptor}", 200, headers, kind, stat_result=os.fstat(descriptor))

    async def __call__(self, scope, receive, send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            os.close(self.descriptor)


def open_file(root: Path, *names: str) -> int:
    """Return a read descriptor of a regular file below `root`. Raises NotFound for anything else."""
    if not all(NAME.fullmatch(name) for name in names):
        raise NotFound(f"{'/'.join(names)!r} is not a file of a run")
    return open_plain(root, *names)


def open_plain(root: Path, *names: str) -> int:
    """Like `open_file`, but names may have any characters; none may be "..". Raises NotFound."""
    path = "/".join(names)
    if ".." in names:
        raise NotFound(f"{path!r} is outside the directory")
    try:
        with anchored.directory(root, *names[:-1]) as around:
            descriptor = os.open(names[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=around)
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror or error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotFound(f"{path} is not a regular file")
    return descriptor


def exists(root: Path, *names: str) -> bool:
    """Return whether `open_file` can open the file."""
    try:
        os.close(open_file(root, *names))
    except NotFound:
        return False
    return True


def fingerprints(root: Path, directories: Sequence[str], names: Sequence[str]) -> list[tuple[int, int] | None]:
    """Return size and time in ns of each file or directory of a directory; None if it does not exist or is a link."""
    marks: dict[str, tuple[int, int]] = {}
    with suppress(OSError), anchored.directory(root, *directories) as around:
        for name in names:
            with suppress(FileNotFoundError):
                entry = os.stat(name, dir_fd=around, follow_symlinks=False)
                if stat.S_ISREG(entry.st_mode) or stat.S_ISDIR(entry.st_mode):
                    marks[name] = entry.st_size, entry.st_mtime_ns
    return [marks.get(name) for name in names]


def names(root: Path, *directories: str) -> list[str]:
    """Return the sorted names in a directory below `root`; empty if it does not exist."""
    try:
        with anchored.directory(root, *directories) as around:
            # an O_PATH descriptor itself cannot be listed
            return sorted(name for name in os.listdir(f"/proc/self/fd/{around}") if NAME.fullmatch(name))
    except OSError:
        return []


def tree_size(root: Path, *directories: str) -> int:
    """Return the size in bytes of a file, or of all files below a directory, without links; 0 if it does not exist."""
    try:
        with anchored.directory(root, *directories) as entered:
            return sum(
                os.stat(each, dir_fd=around, follow_symlinks=False).st_size
                for _, _, names, around in os.fwalk(dir_fd=entered)
                for each in names
            )
    except OSError:
        return (fingerprints(root, directories[:-1], directories[-1:])[0] or (0,))[0]


def runs(root: Path) -> dict[str, float]:
    """Return the runs' names with the time of their creation."""
    marks = {name: fingerprints(root, ("runs", name), (STORE, "config.json")) for name in names(root, "runs")}
    return {name: both[1][1] / 1e9 for name, both in marks.items() if all(both)}


def resolve(root: Path, prefix: str) -> str:
    """Return the run's full name from its name, a unique prefix, or `latest`."""
    created = runs(root)
    if prefix == LATEST and created:
        return max(created, key=lambda name: (created[name], name))
    try:
        return by_beginning(prefix, sorted(created))
    except ValueError as error:
        raise NotFound(f"run {prefix!r} {error}") from error
