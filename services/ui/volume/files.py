"""Which files belong to reports, and how they are opened: by descriptors, following no link below the volume's root.

Every container may write to the volume, and what it puts there must not make this server read a file elsewhere.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from starlette.responses import FileResponse

from services.ui.site.problem import Missing
from vla_common import anchored
from vla_evaluation.config import LATEST
from vla_evaluation.runs.directories import STORE, by_beginning

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # of a run: what the evaluator takes
REPORT, CURVE = "report.html", "curve.png"
MEDIA = {".html": "text/html; charset=utf-8", ".mp4": "video/mp4", ".jpg": "image/jpeg", ".png": "image/png"}


class OpenFile(FileResponse):
    """An open file as an answer, whole or the ranges asked for; it closes the descriptor when it was sent."""

    def __init__(self, descriptor: int, name: str, headers: Mapping[str, str] | None = None):
        self.descriptor = descriptor
        # it may be made again: a browser asks whether it has changed
        headers = {"cache-control": "no-cache", **(headers or {})}
        kind = MEDIA[Path(name).suffix]
        super().__init__(f"/proc/self/fd/{descriptor}", 200, headers, kind, stat_result=os.fstat(descriptor))

    async def __call__(self, scope, receive, send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            os.close(self.descriptor)


def open_file(root: Path, *names: str) -> int:
    """Return a descriptor, for reading, of a plain file below `root`. Raises Missing for anything else."""
    if not all(NAME.fullmatch(name) for name in names):
        raise Missing(f"{'/'.join(names)!r} belongs to no report")
    return open_plain(root, *names)


def open_plain(root: Path, *names: str) -> int:
    """Return what `open_file` does, of a name with any letters; none may be "..". Raises Missing."""
    shown = "/".join(names)
    if ".." in names:
        raise Missing(f"{shown!r} leads elsewhere")
    try:
        with anchored.directory(root, *names[:-1]) as around:
            descriptor = os.open(names[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=around)
    except OSError as error:
        raise Missing(f"{shown} cannot be read: {error.strerror or error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Missing(f"{shown} is no plain file")
    return descriptor


def open_report(root: Path, run: str) -> int:
    """Return a descriptor of a run's report. Raises Missing, with the way to one."""
    try:
        return open_file(root, "runs", run, REPORT)
    except Missing as error:
        raise Missing(f"{error}; build the report: ./lab report {run}") from error


def open_video(root: Path, run: str, name: str) -> int:
    """Return a descriptor of a film of a run, or of its last frame."""
    if Path(name).suffix not in (".mp4", ".jpg"):
        raise Missing(f"{name!r} is no film; expected an .mp4 or a .jpg")
    return open_file(root, "runs", run, "videos", name)


def resolve(root: Path, asked: str) -> str:
    """Return the name of the run that is meant: by name, by a beginning that is one's alone, or `latest`."""
    began = {name: when for name, when in _began(root).items() if when is not None}
    if asked == LATEST and began:
        return max(began, key=lambda name: (began[name], name))
    try:
        return by_beginning(asked, sorted(began))
    except ValueError as error:
        raise Missing(f"run {asked!r} {error}") from error


def names_of_runs(root: Path) -> list[str]:
    """Return the names of the folders that hold a run."""
    return [name for name, when in _began(root).items() if when is not None]


def curves(root: Path) -> list[str]:
    """Return the trained Transformers that have a curve."""
    return [name for name in names(root, "checkpoints", "transformer") if exists(root, *curve(name))]


def curve(name: str) -> tuple[str, ...]:
    """Return where below the volume's root a trained Transformer's curve lies."""
    return "checkpoints", "transformer", name, CURVE


def _began(root: Path) -> dict[str, float | None]:
    """Return when each run was made; None for a folder that holds no run."""
    return {name: _made(root, name) for name in names(root, "runs")}


def _made(root: Path, name: str) -> float | None:
    try:
        with anchored.directory(root, "runs", name) as directory:
            statuses = [os.stat(each, dir_fd=directory, follow_symlinks=False) for each in (STORE, "config.json")]
    except OSError:
        return None
    return statuses[1].st_mtime if all(stat.S_ISREG(each.st_mode) for each in statuses) else None


def names(root: Path, *directories: str) -> list[str]:
    """Return what lies in a folder below `root`, by name; nothing where there is none."""
    try:
        with anchored.directory(root, *directories) as around:
            inside = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=around)  # O_PATH lists nothing
    except OSError:
        return []
    try:
        return sorted(name for name in os.listdir(inside) if NAME.fullmatch(name))
    finally:
        os.close(inside)


def exists(root: Path, *names: str) -> bool:
    """Return whether `open_file` would open it."""
    try:
        os.close(open_file(root, *names))
    except Missing:
        return False
    return True
