"""Deletion of runs, recordings and trained models; `show` gives what they are and their sizes before that."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from vla_common.anchored import refuse_links
from vla_common.volume import Volume
from vla_evaluation.runs.folders import RunRefused, by_beginning, find_run, find_runs, lock
from vla_evaluation.runs.listing import show_size, size_of
from vla_evaluation.runs.models import find_models
from vla_evaluation.terminal import one_line, say

DELETED = ".{}.deleted"  # a directory's name while it is deleted: no list shows it


@dataclass
class Item:
    """A run, a recording, or a trained model with its curves."""

    name: str
    kind: str
    folders: tuple[Path, ...]

    @property
    def size(self) -> str:
        return show_size(sum(map(size_of, self.folders)))


def find_items(root: Path, volume: Volume, names: Sequence[str]) -> list[Item]:
    """Return the items of names, of beginnings of names, or of "latest". RunRefused for one that matches nothing."""
    demonstrations = volume.path("demonstrations")
    known = {model.name: (f"trained {model.lab}", model.folder, model.curves) for model in find_models(volume)}
    known |= {folder.name: ("recording", demonstrations / folder.name) for folder in find_runs(demonstrations)}
    known |= {folder.name: ("run", root / folder.name) for folder in find_runs(root)}
    items = []
    for name in dict.fromkeys(names):
        try:
            match = find_run(root, name).name if name == "latest" else by_beginning(name, list(known))
        except ValueError as error:
            raise RunRefused(f"{name!r} {error}") from error
        kind, *folders = known[match]
        items.append(Item(match, kind, tuple(folders)))
    return items


def show(items: Sequence[Item]) -> None:
    """Print each item's size and path."""
    for item in items:
        say(f"{item.kind} {one_line(item.name)}: {item.size} in {item.folders[0]}")


def delete(items: Sequence[Item]) -> None:
    """Delete them, and print the space. RunRefused for a run or a recording that a process works on."""
    for item in items:
        size = item.size
        for folder in filter(os.path.isdir, item.folders):
            refuse_links(folder)
            with lock(folder) if item.kind in ("run", "recording") else nullcontext():
                deleted = folder.rename(folder.with_name(DELETED.format(folder.name)))
            shutil.rmtree(deleted)
        say(f"deleted {item.kind} {one_line(item.name)}: {size} are free")
