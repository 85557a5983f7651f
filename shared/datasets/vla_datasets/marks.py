"""Episodes that a person has marked as bad: training leaves them out.

No layout stores that, so it is in a file of its own next to the data set, `.NAME.marks.json`, with an identity of the
set: marks of another set that had the name are refused.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from vla_common import anchored
from vla_common.volume import Volume, shown
from vla_datasets import metadata
from vla_datasets.dataset import Dataset
from vla_datasets.errors import DatasetError

SHOWN = 20  # episodes without rows that are named


@dataclass(frozen=True)
class Marks:
    """The episodes of a data set that are marked as bad; `empty` have no rows, and `leave_out` finds them."""

    bad: tuple[int, ...] = ()
    empty: tuple[int, ...] = ()

    @property
    def digest(self) -> str:
        """16 hex digits that change with the marks; empty where nothing is marked."""
        return hashlib.sha256(json.dumps(self.bad).encode()).hexdigest()[:16] if self.bad else ""

    @property
    def left_out(self) -> str:
        """What training leaves out, in words; empty where that is nothing."""
        bad = [f"{len(self.bad)} marked as bad"] if self.bad else []
        empty = [f"{len(self.empty)} without rows ({', '.join(map(str, self.empty[:SHOWN]))})"] if self.empty else []
        return f"{' and '.join(bad + empty)} are left out" if bad or empty else ""

    def __str__(self) -> str:
        return f"marked as bad: {', '.join(map(str, self.bad)) or 'none'}"


def path_of(directory: Path) -> Path:
    """Return where a data set's marks are kept."""
    return directory.with_name(f".{directory.name}.marks.json")


def read(dataset: Dataset) -> Marks:
    """Return a set's marks. Raises DatasetError for a damaged file, and for marks of another set of that name."""
    path = path_of(dataset.directory)
    if not path.exists():
        return Marks()
    found = metadata.read_json(path, getattr(dataset, "opener", None))
    bad = found.get("bad")
    if not isinstance(bad, list) or not all(type(one) is int for one in bad):
        raise DatasetError(f"{shown(path)}: bad is no list of episodes; remove the file, and mark them anew")
    if found.get("of") != _identity(dataset):
        raise DatasetError(f"{shown(path)} marks episodes of another set that was called {dataset.name}; remove it")
    return Marks(tuple(sorted(set(bad))))


def mark(dataset: Dataset, bad: Iterable[int] = (), good: Iterable[int] = ()) -> Marks:
    """Marks episodes as bad, or takes that back; returns all marks. Raises DatasetError for an episode there is not."""
    bad, good = set(bad), set(good)
    if unknown := sorted((bad | good) - {episode.index for episode in dataset.episodes}):
        raise DatasetError(f"{dataset.name} has no episode {unknown[0]}; it has {len(dataset.episodes)}")
    path = path_of(dataset.directory)
    with _locked(path.parent) as around:
        marks = Marks(tuple(sorted((set(read(dataset).bad) | bad) - good)))
        if marks.bad:
            _write(around, path.name, json.dumps({"of": _identity(dataset), "bad": marks.bad}) + "\n")
        else:
            _remove(path.name, around)
    return marks


def leave_out(dataset: Dataset) -> Marks:
    """Leaves the marked episodes, and those without rows, out of an open data set: its statistics are of the others.

    Returns which they are. Raises DatasetError where none is left.
    """
    marks = read(dataset)
    left = [episode for episode in dataset.episodes if episode.index not in marks.bad]
    marks = Marks(marks.bad, tuple(one.index for one in left if not one.length))
    left = [one for one in left if one.length]
    if marks.bad and not left:
        reason = marks.left_out if marks.empty else f"all {len(marks.bad)} episodes are marked as bad"
        raise DatasetError(f"{dataset.name}: {reason}; nothing can be learned")
    if not left:
        raise DatasetError(f"{dataset.name} has no episode with a step; record one, or name another")
    dataset.episodes, dataset.left_out = left, len(marks.bad)
    return marks


def require_instructions(dataset: Dataset, empty: Iterable[int] | None = None) -> None:
    """Raise DatasetError where an episode's instruction is empty, with the command that leaves such episodes out.

    empty: their numbers; by default those whose first task is empty.
    """
    if empty is None:
        empty = (episode.index for episode in dataset.episodes if not (episode.tasks and episode.tasks[0].strip()))
    spans: list[list[int]] = []
    for number in sorted(empty):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    if spans:
        numbers = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
        command = f"./lab dataset {shlex.quote(str(dataset.directory))} --bad {numbers}"
        problem = f"{dataset.name}: the instruction of episode {numbers} is empty, which policies refuse"
        raise DatasetError(f"{problem}; write it, or leave the episode out: {command}")


def _identity(dataset: Dataset) -> str:
    episodes = [[episode.index, episode.length, *episode.tasks] for episode in dataset.episodes]
    text = json.dumps([episodes, dataset.source], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def _locked(directory: Path) -> Iterator[int]:
    """Yield a descriptor of a folder, held by this caller alone; below the volume's root no link leads to it."""
    root = Volume().root
    start = root if directory.is_relative_to(root) else directory
    with anchored.directory(start, *directory.relative_to(start).parts) as entered:
        around = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=entered)
        try:
            fcntl.flock(around, fcntl.LOCK_EX)
            yield around
        finally:
            os.close(around)


def _write(around: int, name: str, text: str) -> None:
    """Write a file whole or not at all; it belongs to the owner of the directory `around`."""
    partial = f"{name}.partial"
    _remove(partial, around)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=around)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            owner = os.fstat(around)
            if os.geteuid() == 0:
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
        os.rename(partial, name, src_dir_fd=around, dst_dir_fd=around)
    except OSError:
        _remove(partial, around)
        raise


def _remove(name: str, around: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=around)
