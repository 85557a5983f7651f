"""Check the files of meta/ (except statistics) against each other, the columns and the files they name."""

from __future__ import annotations

import codecs
import itertools
import re
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from vla_common.regular_files import open_regular
from vla_datasets import metadata
from vla_datasets.checks.findings import Findings
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset

if TYPE_CHECKING:
    from vla_datasets.checks.rows import RowTotals

WRITTEN = ("robot_type", "total_episodes", "total_frames", "total_tasks", "total_chunks", "chunks_size", "splits")
KINDS = {"state": "observation.state", "action": "action"}  # a part's column if it names none
EULER = tuple(f"euler_angles_{order}" for order in ("rpy", "ryp", "pry", "pyr", "yrp", "ypr"))
ROTATIONS = ("axis_angle", "quaternion", "rotation_6d", "matrix", *EULER)

AXIS_NAMES = (
    ("height",),
    ("width",),
    ("channel", "channels", "rgb"),
)  # accepted names of a shape's axes


def lines(findings: Findings) -> None:
    """Check for blank lines and byte order marks, on which upstream's loaders fail."""
    for name in (metadata.INFO, metadata.MODALITY, metadata.STATS):
        path = findings.directory / name
        with suppress(OSError), open_regular(path) as file:  # the reader reports a missing one
            _byte_order_mark(findings, name, file.read(3))
    for name in (metadata.EPISODES, metadata.TASKS, metadata.EPISODES_STATS):
        with suppress(DatasetError):  # the reader reports it
            for row, line in metadata.raw_lines(findings.directory / name):
                if row == 1:
                    _byte_order_mark(findings, name, line)
                if not line.strip():
                    findings.add(name, "blank line; GR00T's loader fails on it: remove it", row)


def _byte_order_mark(findings: Findings, name: str, start: bytes) -> None:
    if start.startswith(codecs.BOM_UTF8):
        findings.add(name, "starts with a byte order mark; LeRobot's and GR00T's loaders fail on it: save without it")


def check(findings: Findings, dataset: LeRobotDataset) -> None:
    """Check info.json, the lists of episodes and tasks, and the files of data/."""
    of_v2 = ("total_chunks",) if dataset.is_v3 else ()
    missing = [name for name in WRITTEN if name not in (*dataset.info, *of_v2)]
    if missing:
        findings.add(metadata.INFO, f"lacks {', '.join(missing)}")
    for key, feature in dataset.features.items():
        _feature(findings, dataset, key, feature)
    _episodes(findings, dataset)
    _tasks(findings, dataset)
    _strays(findings, dataset)


def _feature(findings: Findings, dataset: LeRobotDataset, key: str, feature: dict[str, Any]) -> None:
    shape = feature.get("shape")
    if not isinstance(shape, (list, tuple)) or not all(type(size) is int and size > 0 for size in shape):
        findings.add(metadata.INFO, f"feature {key}: shape is {shape!r}; expected a list of sizes")
    elif feature["dtype"] == "video":
        _image(findings, dataset, key, feature, list(shape))


def _image(findings: Findings, dataset: LeRobotDataset, key: str, feature: dict[str, Any], shape: list[int]) -> None:
    names = feature.get("names")
    if len(shape) != 3:
        findings.add(metadata.INFO, f"feature {key}: shape is {shape}; expected height, width and 3 colours")
    elif not isinstance(names, list) or not all(any(name in names for name in spellings) for spellings in AXIS_NAMES):
        findings.add(metadata.INFO, f"feature {key}: names is {names!r}; expected height, width and channel")
    video_info = feature.get("info") or feature.get("video_info") or {}
    rate = video_info.get("video.fps")
    if rate is None:
        findings.note(metadata.INFO, f"feature {key}: no video.fps in info; GR00T's loader requires it")
    elif rate != dataset.info["fps"]:
        findings.add(metadata.INFO, f"feature {key}: video.fps is {rate}; fps is {dataset.info['fps']}")


def _episodes(findings: Findings, dataset: LeRobotDataset) -> None:
    counts = Counter(episode.index for episode in dataset.episodes)
    for index, count in counts.items():
        if count > 1:
            findings.add(dataset.episodes_name, f"episode {index} is listed {count} times")
    gaps = sorted(set(range(len(counts))) - counts.keys())
    if gaps:
        findings.add(dataset.episodes_name, f"episodes must be numbered from 0; {gaps[0]} is missing")
    instructions = set(dataset.tasks.values())
    for row, episode in enumerate(dataset.episodes, 0 if dataset.is_v3 else 1):
        if not episode.length:
            findings.add(dataset.episodes_name, "length is 0; expected at least one step", row)
        for text in episode.tasks:
            if text not in instructions:
                findings.add(dataset.episodes_name, f"task {text!r} is not in {dataset.tasks_name}", row)
        if not episode.tasks:
            findings.add(dataset.episodes_name, "tasks is empty; expected the instruction", row)


def _tasks(findings: Findings, dataset: LeRobotDataset) -> None:
    if not dataset.is_v3:  # else the reader refuses duplicates
        count = sum(1 for _ in metadata.read_lines(dataset.directory / metadata.TASKS))
        if count != len(dataset.tasks):
            findings.add(metadata.TASKS, f"{count} lines have {len(dataset.tasks)} task_index; remove the duplicate")
    for text, count in Counter(dataset.tasks.values()).items():
        if count > 1:
            findings.note(dataset.tasks_name, f"task {text!r} has {count} numbers")
    for index, text in dataset.tasks.items():
        if not text.strip():
            findings.add(dataset.tasks_name, f"task {index} is empty; expected an instruction")


def _strays(findings: Findings, dataset: LeRobotDataset) -> None:
    """Report files of no episode: upstream's statistics read every parquet file."""
    expected = {dataset.data_path(episode.index) for episode in dataset.episodes}
    for path in sorted(metadata.files_below(dataset.directory / "data")):
        if path.suffix == ".parquet" and path not in expected:
            findings.add(
                path, f"belongs to no episode of {dataset.episodes_name}; statistics of GR00T's loader count it"
            )


def totals(findings: Findings, dataset: LeRobotDataset, counted: RowTotals) -> None:
    """Check info.json's sums against what was read."""
    videos = sum(feature["dtype"] == "video" for feature in dataset.features.values()) * len(dataset.episodes)
    sums = {"total_episodes": len(dataset.episodes), "total_frames": counted.rows, "total_tasks": len(dataset.tasks)}
    for name, value in sums.items():
        if dataset.info.get(name, value) != value:
            findings.add(metadata.INFO, f"{name} is {dataset.info[name]}; the data set has {value}")
    if dataset.info.get("total_videos", videos) != videos:
        findings.note(metadata.INFO, f"total_videos is {dataset.info['total_videos']}; the data set has {videos}")
    size = dataset.info.get("chunks_size") or metadata.CHUNK
    chunks = len({episode.index // size for episode in dataset.episodes})
    if dataset.info.get("total_chunks", chunks) != chunks:
        findings.note(metadata.INFO, f"total_chunks is {dataset.info['total_chunks']}; the data set has {chunks}")
    splits, count = dataset.info.get("splits", {}), len(dataset.episodes)
    if not isinstance(splits, dict):
        findings.note(metadata.INFO, f"splits is {splits!r:.200}; expected an object such as {{'train': '0:{count}'}}")
        return
    for name, text in splits.items():
        ends = re.fullmatch(r"(\d{1,9}):(\d{1,9})", text) if isinstance(text, str) else None
        if not ends or not 0 <= int(ends[1]) < int(ends[2]) <= count:
            findings.note(metadata.INFO, f"splits: {name} is {text!r:.200}; expected FIRST:END within 0:{count}")


def check_modality(findings: Findings, dataset: LeRobotDataset, totals: RowTotals) -> None:
    """Check every part, video and annotation."""
    modality = dataset.modality or {}
    columns = set(next(iter(totals.columns.values()), ()))  # may be more than info.json lists
    for kind in ("state", "action", "video"):
        if not isinstance(modality.get(kind), dict) or not modality[kind]:
            findings.add(metadata.MODALITY, f"names no {kind}; GR00T's loader needs it")
    for kind, column in KINDS.items():
        for name, part in _entries(modality, kind):
            _part(findings, dataset, f"{kind}.{name}", part, column)
    for name, part in _entries(modality, "video"):
        key = part.get("original_key") or name
        if dataset.features.get(key, {}).get("dtype") != "video":
            findings.add(metadata.MODALITY, f"video.{name} is {key!r}, which is not a video in info.json")
    _exchanged(findings, _entries(modality, "video"))
    for kind, column in KINDS.items():
        _overlaps(findings, kind, _entries(modality, kind), column)
    for name, part in _entries(modality, "annotation"):
        key = part.get("original_key") or f"annotation.{name}"
        if key not in dataset.features and totals.columns and key not in columns:
            findings.add(metadata.MODALITY, f"annotation.{name} is column {key!r}, which no table has")


def _entries(modality: dict[str, Any], kind: str) -> list[tuple[str, dict[str, Any]]]:
    entries = modality.get(kind)
    return [(name, part or {}) for name, part in entries.items()] if isinstance(entries, dict) else []


def _exchanged(findings: Findings, videos: list[tuple[str, dict[str, Any]]]) -> None:
    """Check for a camera whose video has another camera's name, and for a video of two cameras."""
    keys = {name: str(part.get("original_key") or name) for name, part in videos}
    for name, key in keys.items():
        last = key.rpartition(".")[2]
        if last != name and last in keys and keys[last] != key:
            findings.add(metadata.MODALITY, f"video.{name} is {key!r}, the name of video.{last}: exchanged")
    for name, key in keys.items():
        if (first := next(camera for camera in keys if keys[camera] == key)) != name:
            findings.add(metadata.MODALITY, f"video.{name} is {key!r}, which is also video.{first}")


def _overlaps(findings: Findings, kind: str, parts: list[tuple[str, dict[str, Any]]], usual: str) -> None:
    ranges = [
        (str(part.get("original_key") or usual), part["start"], part["end"], name)
        for name, part in parts
        if type(part.get("start")) is int and type(part.get("end")) is int
    ]
    for (column, start, end, name), (other_column, other_start, _, other) in itertools.pairwise(sorted(ranges)):
        if column == other_column and start <= other_start < end:
            text = f"{kind}.{other} starts at {other_start} in {kind}.{name}, {column}[{start}:{end}]: they overlap"
            findings.add(metadata.MODALITY, text)


def _part(findings: Findings, dataset: LeRobotDataset, name: str, part: dict[str, Any], usual: str) -> None:
    start, end, key = part.get("start"), part.get("end"), part.get("original_key") or usual
    if type(start) is not int or type(end) is not int or not 0 <= start < end:
        findings.add(metadata.MODALITY, f"{name}: start {start!r}, end {end!r}; expected integers, start < end")
        return
    shape = dataset.features.get(key, {}).get("shape")
    if not shape:
        findings.add(metadata.MODALITY, f"{name} is column {key!r}, which info.json does not have")
    elif end > shape[-1]:
        findings.add(metadata.MODALITY, f"{name} ends at {end}; {key} has {shape[-1]} numbers")
    if part.get("rotation_type") not in (None, *ROTATIONS):
        findings.add(
            metadata.MODALITY, f"{name}: rotation_type {part['rotation_type']!r} is none of {', '.join(ROTATIONS)}"
        )
