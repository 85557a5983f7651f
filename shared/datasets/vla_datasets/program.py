"""What both entrances do with a data set that is there: `./lab dataset NAME` and `./lab data MODEL --dataset NAME`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from vla_common.volume import Volume, make_folder, shown
from vla_datasets import marks, metadata, telling
from vla_datasets.checks import Fault, Findings, faults
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.opening import open_dataset

if TYPE_CHECKING:
    from vla_datasets.hdf5 import LiberoFiles

Needs = Callable[[Findings], None]  # adds what a model lacks in a data set


def read(
    folder: Path, check: bool = False, show: bool = False, write_stats: bool = False, needs: Needs | None = None
) -> int:
    """Says what is in a data set, or does what is asked for; returns the exit code: 1 where it has grave faults.

    write_stats is the only thing that writes into it. needs: what a check looks for besides.
    """
    if write_stats:
        dataset = open_dataset(folder)
        if not isinstance(dataset, LeRobotDataset):
            raise DatasetError(f"{shown(folder)} is {telling.layout(dataset)}, which has no stats.json")
        telling.print_all(f"written: {shown(path)}" for path in dataset.write_statistics())
    found = all_faults(folder, needs) if check else None
    if found is not None:
        telling.print_all(telling.verdict(found))
        _keep_verdict(folder, found)
    if show:
        print(f"page: {shown(make_page(open_dataset(folder), found))}")
    if not (check or show or write_stats):
        telling.print_all(telling.describe(open_dataset(folder)))
    tell_marks(folder)
    return int(any(one.grave for one in found or ()))


def tell_marks(folder: Path) -> None:
    """Says which episodes are marked as bad, or what is wrong with the marks; nothing where none is."""
    try:
        found = marks.read(open_dataset(folder))
    except DatasetError as error:
        print(f"marks: {error}")
        return
    if found.bad:
        print(f"{found}; training leaves {'it' if len(found.bad) == 1 else 'them'} out")


def all_faults(folder: Path, needs: Needs | None = None) -> list[Fault]:
    """Returns the faults of a data set, those for one model too."""
    found = faults(folder, telling.progress)
    if needs is not None:
        more = Findings(folder)
        needs(more)
        found += more.all
    return found


def _keep_verdict(folder: Path, found: list[Fault]) -> None:
    """Keeps what a check of a set of the volume found, for the lab's pages; a read-only volume keeps nothing."""
    if folder.parent == Volume().path("datasets"):
        told = {"at": time.time(), "grave": sum(one.grave for one in found), "lines": list(telling.verdict(found))}
        with suppress(OSError):
            metadata.write_json(make_folder(Volume().path("logs") / "datasets") / f"{folder.name}.check.json", told)


def make_page(dataset: LeRobotDataset | LiberoFiles, found: list[Fault] | None = None) -> Path:
    """Writes a data set's page under logs/datasets on the volume; returns its path."""
    from vla_datasets.pages import page

    folder = make_folder(Volume().path("logs") / "datasets")
    return page.write(dataset, folder / f"{dataset.name}.html", found)
