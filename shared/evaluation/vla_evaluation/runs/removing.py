"""Deleting runs, recordings and trained models. Whoever asks a person first has `show` for what it is and how large."""

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

DOOMED = ".{}.deleted"  # a folder's name while it is taken away: no list shows it


@dataclass
class Thing:
    """What can be deleted: a run, a recording, or a trained model with its curves."""

    name: str
    kind: str
    folders: tuple[Path, ...]

    @property
    def size(self) -> int:
        """How many bytes its files take."""
        return sum(map(size_of, self.folders))


def find_things(root: Path, volume: Volume, names: Sequence[str]) -> list[Thing]:
    """Returns what is meant by names, beginnings of them, or "latest". RunRefused for one that means nothing."""
    models = {model.name: model for model in find_models(volume)}
    runs, demonstrations = [folder.name for folder in find_runs(root)], volume.path("demonstrations")
    recordings = [folder.name for folder in find_runs(demonstrations)]
    found = []
    for name in dict.fromkeys(names):
        try:
            meant = find_run(root, name).name if name == "latest" else by_beginning(name, [*runs, *recordings, *models])
        except ValueError as error:
            raise RunRefused(f"{name!r} {error}") from error
        if meant in runs:
            found.append(Thing(meant, "run", (root / meant,)))
        elif meant in recordings:
            found.append(Thing(meant, "recording", (demonstrations / meant,)))
        else:
            model = models[meant]
            found.append(Thing(meant, f"trained {model.lab}", (model.folder, model.curves)))
    return found


def show(things: Sequence[Thing]) -> None:
    """Prints what each is, its size and where it lies."""
    for thing in things:
        say(f"{thing.kind} {one_line(thing.name)}: {show_size(thing.size)} in {thing.folders[0]}")


def remove(things: Sequence[Thing]) -> None:
    """Deletes them, and says so. RunRefused for one that is worked on."""
    for thing in things:
        size = show_size(thing.size)
        _delete(thing)
        say(f"deleted {thing.kind} {one_line(thing.name)}: {size} are free")


def _delete(thing: Thing) -> None:
    """Deletes its folders. RunRefused for what is worked on."""
    for folder in filter(os.path.isdir, thing.folders):
        refuse_links(folder)
        with lock(folder) if thing.kind in ("run", "recording") else nullcontext():
            doomed = folder.rename(folder.with_name(DOOMED.format(folder.name)))
        shutil.rmtree(doomed)
