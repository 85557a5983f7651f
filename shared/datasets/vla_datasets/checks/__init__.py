"""A data set read back whole, and everything in which it departs from what readers of such sets need.

`faults(folder)` reads every row and decodes every frame. Nothing is written, and nothing in a data set raises an error:
whatever is wrong with it is a Fault, in words, with the file and the row.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vla_datasets import metadata
from vla_datasets.checks.findings import Fault, Findings
from vla_datasets.errors import DatasetError

__all__ = ["Fault", "Findings", "faults"]


def faults(directory: Path | str, tick: Callable[[int, int], None] = lambda done, of: None) -> list[Fault]:
    """Returns what is wrong with a data set of either layout, file by file; empty when it is in order.

    tick(done, of) is called before each episode.
    """
    directory = Path(directory).expanduser().absolute()
    if not directory.exists():
        return [Fault(str(directory), None, "it is not there; expected a data set's folder")]
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

    meta.lines(findings)  # what the reader forgives
    try:
        dataset = LeRobotDataset(findings.directory)
        meta.check(findings, dataset)
        totals = rows.Totals()
        for place, episode in enumerate(dataset.episodes):
            tick(place, len(dataset.episodes))
            columns = rows.check(findings, dataset, episode, totals)
            for key in dataset.video_keys if episode.length else ():
                videos.check(findings, dataset, episode, key, columns, totals)
    except DatasetError as error:  # of what all that follows needs: what is listed, and paths in the data set
        findings.error(metadata.INFO, error)
        return
    meta.totals(findings, dataset, totals)
    stats.check(findings, dataset, totals)
    if dataset.modality is not None:
        meta.check_modality(findings, dataset, totals)
