"""Statistics beside a data set, against those of its rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from vla_datasets import metadata, statistics
from vla_datasets.checks.fault import Findings
from vla_datasets.checks.rows import Totals
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset, incomplete

OFF = 1e-3  # of a column's range; upstream's own, computed in float32, are off by some 1e-5
ANEW = "they are stale: `--write-stats` writes them anew"


def check(found: Findings, dataset: LeRobotDataset, totals: Totals) -> None:
    """Checks stats.json and episodes_stats.jsonl."""
    if len(totals.columns) == len(dataset.episodes) > 0:
        try:
            _of_all(found, dataset, totals)
        except ValueError as error:  # columns of different widths: told of each file already
            found.note(metadata.STATS, None, f"not compared with the rows: {error}")
    if dataset.info["codebase_version"] == "v2.1":
        _per_episode(found, dataset, totals)


def _of_all(found: Findings, dataset: LeRobotDataset, totals: Totals) -> None:
    try:
        stated = dataset.stated_statistics()
    except DatasetError as error:
        found.error(metadata.STATS, error)
        return
    if stated is None:
        words = "is missing; GR00T's loader computes it and writes it into the data set: `--write-stats` does so now"
        found.add(metadata.STATS, None, words, dataset.info["codebase_version"] == "v2.0")
        return
    for key, name in incomplete(stated):
        found.add(metadata.STATS, None, f"{key} lacks {name}; GR00T's loader then computes all anew and overwrites it")
    now = statistics.of_episodes(totals.columns.values())
    for key, of in now.items():
        if key in dataset.features and key not in stated:
            found.add(metadata.STATS, None, f"lacks column {key}; {ANEW}")
        _compare(found, metadata.STATS, None, key, stated.get(key, {}), of)


def _compare(found: Findings, file: str, row: int | None, key: str, stated: dict[str, Any], of: dict) -> None:
    width = np.maximum(of["max"] - of["min"], 1e-6)
    for name in sorted(stated.keys() & of.keys()):
        try:
            values = np.asarray(stated[name], np.float64).ravel()
        except (TypeError, ValueError):
            values = np.array([np.nan])
        if values.shape != of[name].shape:
            found.add(file, row, f"{key}: {name} has {len(values)} numbers; expected {len(of[name])}")
            return
        off = np.abs(values - of[name]) / width
        if not (off <= OFF).all():
            place = int(np.argmax(np.where(np.isfinite(off), off, np.inf)))
            says = f"{name}[{place}] is {values[place]:.6g}; the rows' is {of[name][place]:.6g}"
            found.add(file, row, f"{key}: {says}; {ANEW}")
            return


def _per_episode(found: Findings, dataset: LeRobotDataset, totals: Totals) -> None:
    path = dataset.folder / metadata.EPISODES_STATS
    missing = {episode.index for episode in dataset.episodes}
    try:
        for row, one in metadata.read_lines(path):
            index, stats = one.get("episode_index"), one.get("stats")
            missing -= {index} if type(index) is int else set()
            columns = totals.columns.get(index, {}) if type(index) is int else {}
            if not isinstance(stats, dict):
                found.add(path, row, "stats is missing")
                continue
            for key in sorted(stats.keys() & columns.keys()):
                if columns[key].dtype != object and len(columns[key]) and isinstance(stats[key], dict):
                    kept = {name: value for name, value in stats[key].items() if name in ("min", "max", "mean")}
                    _compare(found, metadata.EPISODES_STATS, row, key, kept, statistics.of_column(columns[key]))
    except DatasetError as error:
        found.error(path, error)
        return
    if missing:
        found.add(
            path, None, f"has no line for episode {min(missing)} ({len(missing)} are missing); LeRobot asks for them"
        )
