"""Episodes that a user has marked as bad: training leaves them out.

No layout stores marks, so they are in a file next to the data set, `.NAME.marks.json`, with the set's identity: marks
of an earlier set with the same name are rejected.
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
from vla_common.volume import Volume, display_path
from vla_datasets import metadata
from vla_datasets.dataset import Dataset
from vla_datasets.errors import DatasetError

MAX_LISTED = 20  # episodes without rows that are named


@dataclass(frozen=True)
class Marks:
    """The episodes that are marked as bad, and those without rows (`empty`, set by `leave_out`)."""

    bad: tuple[int, ...] = ()
    empty: tuple[int, ...] = ()

    @property
    def digest(self) -> str:
        """16 hex digits that change with the marks; empty if nothing is marked."""
        return hashlib.sha256(json.dumps(self.bad).encode()).hexdigest()[:16] if self.bad else ""

    @property
    def left_out(self) -> str:
        """The episodes that training leaves out, as text; empty if none."""
        texts = [f"{len(self.bad)} marked as bad"] if self.bad else []
        if self.empty:
            texts.append(f"{len(self.empty)} without rows ({', '.join(map(str, self.empty[:MAX_LISTED]))})")
        return f"{' and '.join(texts)} are left out" if texts else ""

    def __str__(self) -> str:
        return f"marked as bad: {', '.join(map(str, self.bad)) or 'none'}"


def path_of(directory: Path) -> Path:
    """Return the path of a data set's marks."""
    return directory.with_name(f".{directory.name}.marks.json")


def read(dataset: Dataset) -> Marks:
    """Return a set's marks. Raises DatasetError for a damaged file, and for marks of another set of that name."""
    path = path_of(dataset.directory)
    if not path.exists():
        return Marks()
    stored = metadata.read_json(path, getattr(dataset, "opener", None))
    bad = stored.get("bad")
    if not isinstance(bad, list) or not all(type(number) is int for number in bad):
        raise DatasetError(f"{display_path(path)}: bad is not a list of episodes; remove the file and mark them again")
    if stored.get("of") != _identity(dataset):
        raise DatasetError(f"{display_path(path)} has the marks of an earlier set named {dataset.name}; remove it")
    return Marks(tuple(sorted(set(bad))))


def mark(dataset: Dataset, bad: Iterable[int] = (), good: Iterable[int] = ()) -> Marks:
    """Mark episodes as bad, or unmark them; return all marks. Raises DatasetError for an unknown episode."""
    bad, good = set(bad), set(good)
    if unknown := sorted((bad | good) - {episode.index for episode in dataset.episodes}):
        raise DatasetError(f"{dataset.name} has no episode {unknown[0]}; it has {len(dataset.episodes)}")
    path = path_of(dataset.directory)
    with _locked(path.parent) as directory_fd:
        marks = Marks(tuple(sorted((set(read(dataset).bad) | bad) - good)))
        partial = f"{path.name}.partial" if marks.bad else path.name
        _remove(partial, directory_fd)
        if not marks.bad:
            return marks
        try:  # a new file, not another user's link; it gets the owner of its directory
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with open(os.open(partial, flags, 0o644, dir_fd=directory_fd), "w", encoding="utf-8") as file:
                file.write(json.dumps({"of": _identity(dataset), "bad": marks.bad}) + "\n")
                if os.geteuid() == 0:
                    owner = os.fstat(directory_fd)
                    os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            os.rename(partial, path.name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
        except OSError:
            _remove(partial, directory_fd)
            raise
    return marks


def leave_out(dataset: Dataset) -> Marks:
    """Remove the marked episodes, and those without rows, from an open data set and its statistics.

    Returns them. Raises DatasetError if no episode remains.
    """
    marks = read(dataset)
    left = [episode for episode in dataset.episodes if episode.index not in marks.bad]
    marks = Marks(marks.bad, tuple(episode.index for episode in left if not episode.length))
    left = [episode for episode in left if episode.length]
    if marks.bad and not left:
        reason = marks.left_out if marks.empty else f"all {len(marks.bad)} episodes are marked as bad"
        raise DatasetError(f"{dataset.name}: {reason}; no episode remains for training")
    if not left:
        raise DatasetError(f"{dataset.name} has no episode with a step; record one, or choose another data set")
    dataset.episodes, dataset.left_out = left, len(marks.bad)
    return marks


def require_instructions(dataset: Dataset, empty: Iterable[int] | None = None) -> None:
    """Raise DatasetError if an episode's instruction is empty, with the command that leaves such episodes out.

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
        problem = f"{dataset.name}: the instruction of episode {numbers} is empty; policies reject that"
        raise DatasetError(f"{problem}; write one, or leave the episode out: {command}")


def _identity(dataset: Dataset) -> str:
    episodes = [[episode.index, episode.length, *episode.tasks] for episode in dataset.episodes]
    text = json.dumps([episodes, dataset.source], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def _locked(directory: Path) -> Iterator[int]:
    """Yield the descriptor of a directory under an exclusive lock; links below the volume's root are not followed."""
    root = Volume().root
    start = root if directory.is_relative_to(root) else directory
    with anchored.directory(start, *directory.relative_to(start).parts) as entered:
        directory_fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=entered)
        try:
            fcntl.flock(directory_fd, fcntl.LOCK_EX)
            yield directory_fd
        finally:
            os.close(directory_fd)


def _remove(name: str, directory_fd: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory_fd)
