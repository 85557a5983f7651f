"""Delete runs, recordings and trained models; `show` prints them and their sizes before."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from vla_common.anchored import require_no_links
from vla_common.volume import Volume
from vla_evaluation.runs.directories import RunUnusable, by_beginning, find_run, find_runs, lock
from vla_evaluation.runs.listing import show_size, size_of
from vla_evaluation.runs.models import find_models
from vla_evaluation.terminal import say, single_line

DELETED = ".{}.deleted"  # a directory's name while it is deleted: no list shows it


@dataclass
class StoredItem:
    """A run, a recording, or a trained model with its curves."""

    name: str
    kind: str
    directories: tuple[Path, ...]

    @property
    def size(self) -> str:
        return show_size(sum(map(size_of, self.directories)))


def find_items(root: Path, volume: Volume, names: Sequence[str]) -> list[StoredItem]:
    """Return the items of names, of beginnings of names, or of "latest". RunUnusable for one that matches nothing."""
    demonstrations = volume.path("demonstrations")
    available = {model.name: (f"trained {model.lab}", model.directory, model.curves) for model in find_models(volume)}
    available |= {
        directory.name: ("recording", demonstrations / directory.name) for directory in find_runs(demonstrations)
    }
    available |= {directory.name: ("run", root / directory.name) for directory in find_runs(root)}
    items = []
    for name in dict.fromkeys(names):
        try:
            match = find_run(root, name).name if name == "latest" else by_beginning(name, list(available))
        except ValueError as error:
            raise RunUnusable(f"{name!r} {error}") from error
        kind, *directories = available[match]
        items.append(StoredItem(match, kind, tuple(directories)))
    return items


def show(items: Sequence[StoredItem]) -> None:
    """Print each item's size and path."""
    for item in items:
        say(f"{item.kind} {single_line(item.name)}: {item.size} in {item.directories[0]}")


def delete(items: Sequence[StoredItem]) -> None:
    """Delete them, and print the space. RunUnusable for a run or a recording that a process works on."""
    for item in items:
        size = item.size
        for directory in filter(os.path.isdir, item.directories):
            require_no_links(directory)
            with lock(directory) if item.kind in ("run", "recording") else nullcontext():
                deleted = directory.rename(directory.with_name(DELETED.format(directory.name)))
            shutil.rmtree(deleted)
        say(f"deleted {item.kind} {single_line(item.name)}: {size} freed")
