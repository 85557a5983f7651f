"""An episode's table: columns, shapes, numbers, and LeRobot's own columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from vla_datasets import tables
from vla_datasets.checks.findings import Findings
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.metadata import Episode
from vla_datasets.videos import OpenVideos
from vla_datasets.writing import DEFAULT_COLUMNS

TOLERANCE_S = 1e-4  # LeRobot's own, of time stamps
Columns = dict[str, np.ndarray]


@dataclass
class RowTotals:
    """Counts and data of the episodes read so far.

    rows     of all tables; the listed length where a table cannot be read
    listed   rows by the list of episodes
    columns  each episode's columns of numbers
    images   image statistics by (episode, feature)
    videos   those read last
    """

    rows: int = 0
    listed: int = 0
    columns: dict[int, Columns] = field(default_factory=dict)
    images: dict[tuple[int, str], dict[str, np.ndarray]] = field(default_factory=dict)
    videos: OpenVideos = field(default_factory=OpenVideos)


def check(findings: Findings, dataset: LeRobotDataset, episode: Episode, totals: RowTotals) -> Columns | None:
    """Check an episode's rows; return its columns, None if they cannot be read."""
    path = dataset.data_path(episode.index)
    try:
        table = dataset.rows(episode.index)
        columns = tables.columns(table, path)
    except DatasetError as error:
        findings.error(path, error)
        totals.rows, totals.listed = totals.rows + episode.length, totals.listed + episode.length
        return None
    if table.num_rows != episode.length:
        findings.add(path, f"{table.num_rows} rows; {dataset.episodes_name} says length {episode.length}")
    for key, feature in dataset.features.items():
        if feature["dtype"] != "video":
            _column(findings, path, key, feature, table, columns)
    for key in columns.keys() - dataset.features.keys():
        findings.note(path, f"column {key} is not a feature of info.json")
    if not table.num_rows:
        findings.add(path, f"has no rows; training skips episode {episode.index}")
    _default_columns(findings, dataset, episode, path, columns, totals)
    totals.rows, totals.listed = totals.rows + table.num_rows, totals.listed + episode.length
    totals.columns[episode.index] = columns
    return columns


def _column(findings: Findings, path: Path, key: str, feature: dict, table: pa.Table, columns: Columns) -> None:
    if key not in table.column_names:
        findings.add(path, f"column {key} is missing; info.json lists it")
        return
    if key not in columns:
        return  # images
    values, shape = columns[key], tuple(feature.get("shape") or ())
    size = int(np.prod(shape)) if all(type(side) is int for side in shape) else 0
    width = int(np.prod(values.shape[1:]))
    if values.dtype != object and width != size:
        findings.add(path, f"column {key} has {width} numbers a row; info.json says shape {list(shape)}")
    kind = table.schema.field(key).type
    while hasattr(kind, "value_type"):  # of lists
        kind = kind.value_type
    if feature["dtype"] in tables.TYPES and kind != tables.TYPES[feature["dtype"]]:
        is_grave = pa.types.is_floating(kind) != pa.types.is_floating(tables.TYPES[feature["dtype"]])
        findings.add(path, f"column {key} is {kind}; info.json says {feature['dtype']}", grave=is_grave)
    findings.not_finite(path, f"column {key}", values)


def _default_columns(
    findings: Findings, dataset: LeRobotDataset, episode: Episode, path: Path, columns: Columns, totals: RowTotals
) -> None:
    missing = [name for name in DEFAULT_COLUMNS if name not in columns and name not in dataset.features]
    if missing:
        grave = "timestamp" in missing or "task_index" in missing
        findings.add(path, f"lacks LeRobot's own column {', '.join(missing)}", grave=grave)
    steps = np.arange(len(next(iter(columns.values()), ())))
    index = columns.get("index", np.zeros(0)).ravel()
    # An episode whose length differs from the listed one is reported once, not at every index after it.
    first_row = totals.listed if len(index) and index[0] == totals.listed else totals.rows
    expected = {"frame_index": steps, "index": first_row + steps, "episode_index": np.full(len(steps), episode.index)}
    for name, values in expected.items():
        if name in columns:
            stated = columns[name].ravel()
            for row in np.flatnonzero(stated != values)[:1]:
                findings.add(path, f"{name} is {stated[row]}; expected {values[row]}", int(row))
    if "timestamp" in columns:
        _timestamps(findings, path, columns["timestamp"].ravel(), dataset.fps)
    if "task_index" in columns:
        indices = columns["task_index"].ravel()
        for row in [row for row, index in enumerate(indices) if index not in dataset.tasks][:1]:
            findings.add(path, f"task_index is {indices[row]}, which is not in {dataset.tasks_name}", row)
            return
        for row, index in enumerate(indices):
            if (text := dataset.tasks[int(index)]) not in episode.tasks:
                stated = " or ".join(map(repr, episode.tasks)) or "none"
                findings.add(path, f"task_index is {index}, {text!r}; {dataset.episodes_name} says {stated}", row)
                return


def _timestamps(findings: Findings, path: Path, values: np.ndarray, fps: float) -> None:
    if values.dtype.kind != "f" or len(values) < 2:
        return
    gaps = np.diff(values.astype(np.float64))
    odd = np.flatnonzero(~(np.abs(gaps - 1 / fps) <= TOLERANCE_S))
    if len(odd):
        row = int(odd[0]) + 1
        findings.add(
            path, f"timestamp is {gaps[row - 1]:.4f} s after the last; expected {1 / fps:.4f} s at {fps:g} fps", row
        )
    elif abs(values[0]) > TOLERANCE_S:
        findings.add(
            path, f"timestamp begins at {values[0]:.4f} s; expected 0: loaders with timestamps read later frames", 0
        )
