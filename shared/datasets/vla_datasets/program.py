"""What `./lab dataset NAME` and `./lab data MODEL --dataset NAME` do with an existing data set."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from vla_common.volume import Volume, make_directory, shown
from vla_datasets import marks, metadata, summary
from vla_datasets.checks import Fault, Findings, faults
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.opening import open_dataset

Requirements = Callable[[Findings], None]  # adds what a model misses in a data set


def read(
    directory: Path,
    check: bool = False,
    show: bool = False,
    write_stats: bool = False,
    needs: Requirements | None = None,
) -> int:
    """Describe a data set, or do what is requested; return the exit code: 1 where it has grave faults.

    write_stats is the only thing that writes into it. needs: what a check looks for besides.
    """
    if write_stats:
        dataset = open_dataset(directory)
        if not isinstance(dataset, LeRobotDataset):
            raise DatasetError(f"{shown(directory)} is {summary.layout(dataset)}, which has no stats.json")
        for path in dataset.write_statistics():
            print(f"written: {shown(path)}")
    found = check_and_report(directory, needs) if check else None
    if show:
        from vla_datasets.pages import page

        dataset, pages = open_dataset(directory), make_directory(Volume().path("logs") / "datasets")
        print(f"page: {shown(page.write(dataset, pages / f'{dataset.name}.html', found))}")
    if not (check or show or write_stats):
        print("\n".join(summary.describe(open_dataset(directory))))
    try:
        marked = marks.read(open_dataset(directory))
        if marked.bad:
            print(f"{marked}; training leaves {'it' if len(marked.bad) == 1 else 'them'} out")
    except DatasetError as error:
        print(f"marks: {error}")
    return int(any(one.grave for one in found or ()))


def check_and_report(directory: Path, needs: Requirements | None = None) -> list[Fault]:
    """Print the faults of a data set; return them. Those of a set on the volume are stored for the lab's pages."""
    found = faults(directory, summary.progress)
    if needs is not None:
        more = Findings(directory)
        needs(more)
        found += more.all
    lines = list(summary.verdict(found))
    print("\n".join(lines))
    if directory.parent == Volume().path("datasets"):
        result = {"at": time.time(), "grave": sum(one.grave for one in found), "lines": lines}
        with suppress(OSError):  # a read-only volume
            metadata.write_json(
                make_directory(Volume().path("logs") / "datasets") / f"{directory.name}.check.json", result
            )
    return found
