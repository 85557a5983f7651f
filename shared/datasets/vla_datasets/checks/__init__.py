"""Check a whole data set against what its readers require.

`faults(directory)` reads every row and decodes every frame. It writes nothing and raises no error for a bad data set:
each problem becomes a DatasetFault with file, row and message.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vla_datasets import metadata
from vla_datasets.checks.findings import DatasetFault, Findings
from vla_datasets.errors import DatasetError

__all__ = ["DatasetFault", "Findings", "faults"]


def faults(directory: Path | str, tick: Callable[[int, int], None] = lambda done, of: None) -> list[DatasetFault]:
    """Return the faults of a data set of either layout, file by file; empty for a valid one.

    tick(done, of) is called before each episode.
    """
    directory = Path(directory).expanduser().absolute()
    if not directory.exists():
        return [DatasetFault(str(directory), None, "not found; expected a data set's directory")]
    findings = Findings(directory)
    if not (directory / "meta").is_dir():
        from vla_datasets import hdf5  # h5py is loaded where it is needed
        from vla_datasets.checks import demos

        if hdf5.files(directory):
            demos.check(findings, tick)
            return findings.all
    _lerobot(findings, tick)
    return findings.all


def _lerobot(findings: Findings, tick: Callable[[int, int], None]) -> None:
    from vla_datasets.checks import meta, rows, stats, videos
    from vla_datasets.lerobot import LeRobotDataset

    meta.lines(findings)  # what the reader accepts
    try:
        dataset = LeRobotDataset(findings.directory)
        meta.check(findings, dataset)
        totals = rows.RowTotals()
        for index, episode in enumerate(dataset.episodes):
            tick(index, len(dataset.episodes))
            findings.first_row = dataset.first_row(episode.index)
            columns = rows.check(findings, dataset, episode, totals)
            findings.first_row = 0
            for key in dataset.video_keys if episode.length else ():
                videos.check(findings, dataset, episode, key, columns, totals)
    except DatasetError as error:  # without lists and paths, no other check can run
        findings.error(metadata.INFO, error)
        return
    meta.totals(findings, dataset, totals)
    stats.check(findings, dataset, totals)
    if dataset.modality is not None:
        meta.check_modality(findings, dataset, totals)
