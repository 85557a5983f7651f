"""Check the stored statistics of a data set against its rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from vla_datasets import metadata, statistics, v3
from vla_datasets.checks.findings import Findings
from vla_datasets.checks.rows import RowTotals
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset, incomplete

IMAGE_ROOM = 0.05  # of 0 to 1: how far a mean or std of an episode's images may be from the decoded frames'
STALE = "outdated: `--write-stats` writes them again"


def check(findings: Findings, dataset: LeRobotDataset, totals: RowTotals) -> None:
    """Check stats.json and the statistics of every episode."""
    if len(totals.columns) == len(dataset.episodes) > 0:
        try:
            _of_all(findings, dataset, totals)
        except ValueError as error:  # columns of different widths: already reported per file
            findings.note(metadata.STATS, f"not compared with the rows: {error}")
    if dataset.info["codebase_version"] != "v2.0":
        _per_episode(findings, dataset, totals)


def _of_all(findings: Findings, dataset: LeRobotDataset, totals: RowTotals) -> None:
    try:
        stated = dataset.stated_statistics()
    except DatasetError as error:
        findings.error(metadata.STATS, error)
        return
    if stated is None:
        message = "is missing; GR00T's loader will compute and write it: `--write-stats` does so now"
        findings.add(metadata.STATS, message, grave=dataset.info["codebase_version"] != "v2.1")
        return
    for key, name in incomplete(stated):
        findings.add(metadata.STATS, f"{key} lacks {name}; GR00T's loader then computes all again and overwrites it")
    for key, rows in statistics.all_rows(totals.columns.values()).items():
        if key in dataset.features and key not in stated:
            findings.add(metadata.STATS, f"lacks column {key}; {STALE}")
        _compare(findings, metadata.STATS, None, key, stated.get(key, {}), rows)


def _compare(
    findings: Findings, file: str, row: int | None, key: str, stated: dict[str, Any], rows: np.ndarray
) -> None:
    try:
        for departure in sorted(statistics.departures(key, stated, rows), key=lambda departure: not departure.grave)[
            :1
        ]:
            wider = "wider than the rows need; `--write-stats` writes the rows'"
            findings.add(file, f"{departure}; {STALE if departure.grave else wider}", row, departure.grave)
    except ValueError as error:
        findings.add(file, str(error), row)


def _count(findings: Findings, file: str, row: int, key: str, stated: dict[str, Any], rows: int) -> None:
    count = np.asarray(stated.get("count", rows), object).ravel().tolist()
    if count != [rows]:
        text = f"{key}: count is {count!r:.100}; the episode has {rows} rows; {STALE}"
        findings.add(file, text, row)


def _images(
    findings: Findings, file: str, row: int, key: str, stated: dict[str, Any], actual: dict[str, np.ndarray]
) -> None:
    """Compare mean and std per colour. LeRobot computes them from other frames, downscaled, before encoding."""
    for name in ("mean", "std"):
        try:
            values = np.asarray(stated.get(name, actual[name]), np.float64).ravel()
        except (TypeError, ValueError):
            values = np.full(3, np.nan)
        expected = actual[name].ravel()
        if values.shape != expected.shape or not np.all(np.abs(values - expected) <= IMAGE_ROOM):
            text = f"{key}: {name} is {_listed(values)}; the frames' is {_listed(expected)}, of 0 to 1; {STALE}"
            findings.add(file, text, row)


def _listed(values: np.ndarray) -> str:
    return f"[{', '.join(f'{value:.3g}' for value in values[:3])}]"


def _per_episode(findings: Findings, dataset: LeRobotDataset, totals: RowTotals) -> None:
    path = dataset.directory / (v3.EPISODES if dataset.is_v3 else metadata.EPISODES_STATS)
    missing = {episode.index for episode in dataset.episodes}
    try:
        for file, row, index, stats in _entries(dataset):
            missing -= {index} if type(index) is int else set()
            columns = totals.columns.get(index, {}) if type(index) is int else {}
            if not isinstance(stats, dict):
                findings.add(file, "stats is missing", row)
                continue
            for key in sorted(stats.keys() & columns.keys()):
                if columns[key].dtype != object and len(columns[key]) and isinstance(stats[key], dict):
                    compared = {
                        name: value for name, value in stats[key].items() if name in ("min", "max", "mean", "std")
                    }
                    _compare(findings, file, row, key, compared, columns[key])
                    _count(findings, file, row, key, stats[key], len(columns[key]))
            for key in stats.keys() & set(dataset.video_keys):
                if (index, key) in totals.images and isinstance(stats[key], dict):
                    _images(findings, file, row, key, stats[key], totals.images[index, key])
    except DatasetError as error:
        findings.error(path, error)
        return
    if missing:
        problem = f"has no line for episode {min(missing)} ({len(missing)} are missing)"
        findings.add(path, f"{problem}; LeRobot requires them: `--write-stats` writes them")


def _entries(dataset: LeRobotDataset) -> Iterator[tuple[str, int, Any, Any]]:
    """Yield (file, row, episode, statistics) as a set of v2.1 or v3.0 stores them."""
    if dataset.is_v3:
        for path, row, index, stats in v3.read_statistics(dataset.directory):
            yield str(path), row, index, stats
        return
    for row, line in metadata.read_lines(dataset.directory / metadata.EPISODES_STATS):
        yield metadata.EPISODES_STATS, row, line.get("episode_index"), line.get("stats")
