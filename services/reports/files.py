"""Which files belong to reports, and how they are opened: by descriptors, following no link below the volume's root.

Every container may write to the volume, and what it puts there must not make this server read a file elsewhere.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from vla_common import anchored
from vla_evaluation.config import LATEST
from vla_evaluation.runs.folders import STORE, by_beginning

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # of a run: what the evaluator takes
REPORT, SUMMARY, CURVE = "report.html", "summary.json", "curve.png"
MEDIA = {".html": "text/html; charset=utf-8", ".mp4": "video/mp4", ".jpg": "image/jpeg", ".png": "image/png"}
SUMMARY_BYTES = 16 * 2**20  # libero_90's has 0.1 MB


class Missing(Exception):
    """What was asked for is not there, or nothing to hand out; the message says what is."""


@dataclass(frozen=True)
class Listed:
    """One run of the list. `result` is words: how far it is, and its rate."""

    name: str
    began: float  # s since 1970
    has_report: bool
    title: str
    result: str


def open_file(root: Path, *names: str) -> int:
    """Returns a descriptor, for reading, of a plain file below `root`. Raises Missing for anything else."""
    if not all(NAME.fullmatch(name) for name in names):
        raise Missing(f"{'/'.join(names)!r} belongs to no report")
    return open_plain(root, *names)


def open_plain(root: Path, *names: str) -> int:
    """Returns what `open_file` does, of a name with any letters; none may be "..". Raises Missing."""
    shown = "/".join(names)
    if ".." in names:
        raise Missing(f"{shown!r} leads elsewhere")
    try:
        with anchored.folder(root, *names[:-1]) as around:
            descriptor = os.open(names[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=around)
    except OSError as error:
        raise Missing(f"{shown} cannot be read: {error.strerror or error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Missing(f"{shown} is no plain file")
    return descriptor


def open_report(root: Path, run: str) -> int:
    """Returns a descriptor of a run's report. Raises Missing, with the way to one."""
    try:
        return open_file(root, "runs", run, REPORT)
    except Missing as error:
        raise Missing(f"{error}; build the report: ./lab report {run}") from error


def open_film(root: Path, run: str, name: str) -> int:
    """Returns a descriptor of a film of a run, or of its last frame."""
    if Path(name).suffix not in (".mp4", ".jpg"):
        raise Missing(f"{name!r} is no film; expected an .mp4 or a .jpg")
    return open_file(root, "runs", run, "videos", name)


def resolve(root: Path, asked: str) -> str:
    """Returns the name of the run that is meant: by name, by a beginning that is one's alone, or `latest`."""
    began = {name: when for name, when in _began(root).items() if when is not None}
    if asked == LATEST and began:
        return max(began, key=lambda name: (began[name], name))
    try:
        return by_beginning(asked, sorted(began))
    except ValueError as error:
        raise Missing(f"run {asked!r} {error}") from error


def names_of_runs(root: Path) -> list[str]:
    """Returns the names of the folders that hold a run."""
    return [name for name, when in _began(root).items() if when is not None]


def listed(root: Path) -> list[Listed]:
    """Returns the volume's runs, the latest first."""
    began = [(when, name) for name, when in _began(root).items() if when is not None]
    return [_listed(root, name, when) for when, name in sorted(began, reverse=True)]


def curves(root: Path) -> list[str]:
    """Returns the trained Transformers that have a curve."""
    return [name for name in names(root, "checkpoints", "transformer") if _is_there(root, *curve(name))]


def curve(name: str) -> tuple[str, ...]:
    """Returns where below the volume's root a trained Transformer's curve lies."""
    return "checkpoints", "transformer", name, CURVE


def _listed(root: Path, name: str, began: float) -> Listed:
    has_report = _is_there(root, "runs", name, REPORT)
    try:
        title, result = _said(_read_summary(root, name))
    except Missing:
        title, result = "", "no result yet"
    except (ValueError, KeyError, TypeError, RecursionError):
        title, result = "", "its summary is damaged"
    return Listed(name, began, has_report, title, result)


def _read_summary(root: Path, name: str) -> dict:
    with open(open_file(root, "runs", name, SUMMARY), "rb") as file:
        text = file.read(SUMMARY_BYTES + 1)
    if len(text) > SUMMARY_BYTES:
        raise ValueError(f"the summary of {name} has more than {SUMMARY_BYTES} bytes")
    return json.loads(text)


def _said(summary: dict) -> tuple[str, str]:
    """Returns what a summary says: policy and suite, and the result."""
    title = f"{summary['provenance']['policy']['name']} on {summary['suite']}"
    done, planned, good = (int(summary[name]) for name in ("episodes", "planned", "successes"))
    if not summary["complete"]:
        return title, f"{done} of {planned} episodes done" + (f", {good} succeeded so far" if done else "")
    low, high = (100 * float(end) for end in summary["wilson_95"])
    assets = f"assets: {summary['assets']}"
    return title, f"{100 * good / done:.1f} % ({good} of {done}), 95 % {low:.1f}–{high:.1f} %, {assets}"


def _began(root: Path) -> dict[str, float | None]:
    """Returns when each run was made; None for a folder that holds no run."""
    return {name: _made(root, name) for name in names(root, "runs")}


def _made(root: Path, name: str) -> float | None:
    try:
        with anchored.folder(root, "runs", name) as folder:
            statuses = [os.stat(each, dir_fd=folder, follow_symlinks=False) for each in (STORE, "config.json")]
    except OSError:
        return None
    return statuses[1].st_mtime if all(stat.S_ISREG(each.st_mode) for each in statuses) else None


def names(root: Path, *folders: str) -> list[str]:
    try:
        with anchored.folder(root, *folders) as around:
            inside = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=around)  # O_PATH lists nothing
    except OSError:
        return []
    try:
        return sorted(name for name in os.listdir(inside) if NAME.fullmatch(name))
    finally:
        os.close(inside)


def _is_there(root: Path, *names: str) -> bool:
    try:
        os.close(open_file(root, *names))
    except Missing:
        return False
    return True
