"""`./lab dataset NAME` and `./lab data MODEL --dataset NAME` for an existing data set."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from vla_common.volume import Volume, display_path, make_directory
from vla_datasets import audit, marks, metadata, summary
from vla_datasets.checks import DatasetFault, Findings, faults
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.loader import open_dataset

Requirements = Callable[[Findings], None]  # adds the faults that concern one model


def read(
    directory: Path,
    check: bool = False,
    show: bool = False,
    write_stats: bool = False,
    needs: Requirements | None = None,
) -> int:
    """Describe, check or display a data set; return the exit code: 1 if it has grave faults.

    Only write_stats writes into it. needs: a model's additional checks.
    """
    if write_stats:
        dataset = open_dataset(directory)
        if not isinstance(dataset, LeRobotDataset):
            raise DatasetError(f"{display_path(directory)} is {summary.layout(dataset)}, which has no stats.json")
        for path in dataset.write_statistics():
            print(f"written: {display_path(path)}")
    reported: list[DatasetFault] | None = None
    if check:
        more = Findings(directory)
        reported = faults(directory, summary.progress)
        if needs is not None:
            needs(more)
        reported += more.all
        lines = list(summary.verdict(reported))
        if not any(fault.grave for fault in reported):
            lines += audit.audit(directory).lines()
        print("\n".join(lines))
        if directory.parent == Volume().path("datasets"):  # the lab's pages show it
            result = {"at": time.time(), "grave": sum(fault.grave for fault in reported), "lines": lines}
            with suppress(OSError):  # a read-only volume
                pages = make_directory(Volume().path("logs") / "datasets")
                metadata.write_json(pages / f"{directory.name}.check.json", result)
    if show:
        from vla_datasets.pages import page

        dataset, pages = open_dataset(directory), make_directory(Volume().path("logs") / "datasets")
        print(f"page: {display_path(page.write(dataset, pages / f'{dataset.name}.html', reported))}")
    if not (check or show or write_stats):
        print("\n".join(summary.describe(open_dataset(directory))))
    try:
        marked = marks.read(open_dataset(directory))
        if marked.bad:
            print(f"{marked}; training leaves {'it' if len(marked.bad) == 1 else 'them'} out")
    except DatasetError as error:
        print(f"marks: {error}")
    return int(any(fault.grave for fault in reported or ()))
