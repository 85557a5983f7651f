"""Open files of runs and reports by descriptor, without following links below the volume's root.

Every container may write to the volume; its links must not make this server read other files.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from starlette.responses import FileResponse

from services.ui.site.problem import NotFound
from vla_common import anchored
from vla_evaluation.config import LATEST
from vla_evaluation.runs.directories import STORE, by_beginning

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # valid name of a run
REPORT, CURVE = "report.html", "curve.png"
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


def open_report(root: Path, run: str) -> int:
    """Return a descriptor of a run's report. Raises NotFound with the command that builds one."""
    try:
        return open_file(root, "runs", run, REPORT)
    except NotFound as error:
        raise NotFound(f"{error}; build the report: ./lab report {run}") from error


def open_video(root: Path, run: str, name: str) -> int:
    """Return a descriptor of a run's video, or of its last frame."""
    if Path(name).suffix not in (".mp4", ".jpg"):
        raise NotFound(f"{name!r} is not a video; expected .mp4 or .jpg")
    return open_file(root, "runs", run, "videos", name)


def resolve(root: Path, prefix: str) -> str:
    """Return the run's full name from its name, a unique prefix, or `latest`."""
    created = {name: when for name, when in _created(root).items() if when is not None}
    if prefix == LATEST and created:
        return max(created, key=lambda name: (created[name], name))
    try:
        return by_beginning(prefix, sorted(created))
    except ValueError as error:
        raise NotFound(f"run {prefix!r} {error}") from error


def names_of_runs(root: Path) -> list[str]:
    """Return the names of the runs."""
    return [name for name, when in _created(root).items() if when is not None]


def curves(root: Path) -> list[str]:
    """Return the names of trained Transformers with a training curve."""
    return [name for name in names(root, "checkpoints", "transformer") if exists(root, *curve(name))]


def curve(name: str) -> tuple[str, ...]:
    """Return the path of a Transformer's training curve below the volume's root."""
    return "checkpoints", "transformer", name, CURVE


def _created(root: Path) -> dict[str, float | None]:
    """Return each directory's creation time; None if it is not a run."""
    return {name: _made(root, name) for name in names(root, "runs")}


def _made(root: Path, name: str) -> float | None:
    try:
        with anchored.directory(root, "runs", name) as directory:
            statuses = [os.stat(each, dir_fd=directory, follow_symlinks=False) for each in (STORE, "config.json")]
    except OSError:
        return None
    return statuses[1].st_mtime if all(stat.S_ISREG(each.st_mode) for each in statuses) else None


def names(root: Path, *directories: str) -> list[str]:
    """Return the sorted names in a directory below `root`; empty if it does not exist."""
    try:
        with anchored.directory(root, *directories) as around:
            inside = os.open(
                ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=around
            )  # an O_PATH descriptor cannot be listed
    except OSError:
        return []
    try:
        return sorted(name for name in os.listdir(inside) if NAME.fullmatch(name))
    finally:
        os.close(inside)


def exists(root: Path, *names: str) -> bool:
    """Return whether `open_file` can open the file."""
    try:
        os.close(open_file(root, *names))
    except NotFound:
        return False
    return True
