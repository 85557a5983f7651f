"""What meta/ says: info.json, episodes.jsonl and tasks.jsonl, against each other and against the files there."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from vla_common.regular_files import open_regular
from vla_datasets import metadata
from vla_datasets.checks.fault import Findings
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset

if TYPE_CHECKING:
    from vla_datasets.checks.rows import Totals

WRITTEN = ("robot_type", "total_episodes", "total_frames", "total_tasks", "total_chunks", "chunks_size", "splits")
PICTURE = (("height",), ("width",), ("channel", "channels", "rgb"))  # what the three numbers of a shape may be called


def lines(found: Findings) -> None:
    """Checks for blank lines and byte order marks, on which upstream's loaders fail."""
    for name in (metadata.INFO, metadata.MODALITY, metadata.STATS):
        path = found.folder / name
        with suppress(OSError), open_regular(path) as file:  # the reader reports a missing one
            _byte_order_mark(found, name, file.read(3))
    for name in (metadata.EPISODES, metadata.TASKS, metadata.EPISODES_STATS):
        with suppress(DatasetError):  # the reader reports it
            for row, line in metadata.raw_lines(found.folder / name):
                if row == 1:
                    _byte_order_mark(found, name, line)
                if not line.strip():
                    found.add(name, row, "a blank line; GR00T's loader fails on it: remove it")


def _byte_order_mark(findings: Findings, name: str, start: bytes) -> None:
    if start.startswith(codecs.BOM_UTF8):
        findings.add(
            name, None, "begins with a byte order mark; LeRobot's and GR00T's loaders fail on it: save without it"
        )


def check(found: Findings, dataset: LeRobotDataset) -> None:
    """Checks what is listed."""
    missing = [name for name in WRITTEN if name not in dataset.info]
    if missing:
        found.add(metadata.INFO, None, f"lacks {', '.join(missing)}")
    for key, feature in dataset.features.items():
        _feature(found, dataset, key, feature)
    _episodes(found, dataset)
    _tasks(found, dataset)
    _strays(found, dataset)


def _feature(found: Findings, dataset: LeRobotDataset, key: str, feature: dict[str, Any]) -> None:
    shape = feature.get("shape")
    if not isinstance(shape, (list, tuple)) or not all(type(size) is int and size > 0 for size in shape):
        found.add(metadata.INFO, None, f"feature {key}: shape is {shape!r}; expected a list of sizes")
    elif feature["dtype"] == "video":
        _picture(found, dataset, key, feature, list(shape))


def _picture(found: Findings, dataset: LeRobotDataset, key: str, feature: dict[str, Any], shape: list[int]) -> None:
    names = feature.get("names")
    if len(shape) != 3:
        found.add(metadata.INFO, None, f"feature {key}: shape is {shape}; expected height, width and 3 colours")
    elif not isinstance(names, list) or not all(any(name in names for name in known) for known in PICTURE):
        found.add(metadata.INFO, None, f"feature {key}: names is {names!r}; expected height, width and channel")
    told = feature.get("info") or feature.get("video_info") or {}
    rate = told.get("video.fps")
    if rate is None:
        found.note(metadata.INFO, None, f"feature {key}: no video.fps in info; GR00T's loader asks for it")
    elif rate != dataset.info["fps"]:
        found.add(metadata.INFO, None, f"feature {key}: video.fps is {rate}; fps is {dataset.info['fps']}")


def _episodes(found: Findings, dataset: LeRobotDataset) -> None:
    counts = Counter(episode.index for episode in dataset.episodes)
    for index, count in counts.items():
        if count > 1:
            found.add(metadata.EPISODES, None, f"episode {index} is listed {count} times")
    gaps = sorted(set(range(len(counts))) - counts.keys())
    if gaps:
        found.add(metadata.EPISODES, None, f"episodes are not numbered from 0 on: {gaps[0]} is missing")
    known = set(dataset.tasks.values())
    for row, episode in enumerate(dataset.episodes, 1):
        if not episode.length:
            found.add(metadata.EPISODES, row, "length is 0; expected at least one step")
        for text in episode.tasks:
            if text not in known:
                found.add(metadata.EPISODES, row, f"task {text!r} is not in {metadata.TASKS}")
        if not episode.tasks:
            found.add(metadata.EPISODES, row, "tasks is empty; expected the instruction")


def _tasks(found: Findings, dataset: LeRobotDataset) -> None:
    count = sum(1 for _ in metadata.read_lines(dataset.folder / metadata.TASKS))
    if count != len(dataset.tasks):
        found.add(metadata.TASKS, None, f"{count} lines give {len(dataset.tasks)} task_index; one is there twice")
    for text, count in Counter(dataset.tasks.values()).items():
        if count > 1:
            found.note(metadata.TASKS, None, f"task {text!r} has {count} numbers")
    for index, text in dataset.tasks.items():
        if not text.strip():
            found.add(metadata.TASKS, None, f"task {index} is empty; expected an instruction")


def _strays(found: Findings, dataset: LeRobotDataset) -> None:
    """Names files that no episode means: upstream's statistics read every parquet file there is."""
    known = {dataset.data_path(episode.index) for episode in dataset.episodes}
    for path in sorted(metadata.files_below(dataset.folder / "data")):
        if path.suffix == ".parquet" and path not in known:
            found.add(
                path, None, f"belongs to no episode of {metadata.EPISODES}; statistics of GR00T's loader count it"
            )


def totals(found: Findings, dataset: LeRobotDataset, counted: Totals) -> None:
    """Checks info.json's sums against what was read."""
    films = sum(feature["dtype"] == "video" for feature in dataset.features.values()) * len(dataset.episodes)
    sums = {"total_episodes": len(dataset.episodes), "total_frames": counted.rows, "total_tasks": len(dataset.tasks)}
    for name, value in sums.items():
        if dataset.info.get(name, value) != value:
            found.add(metadata.INFO, None, f"{name} is {dataset.info[name]}; there are {value}")
    if dataset.info.get("total_videos", films) != films:
        found.note(metadata.INFO, None, f"total_videos is {dataset.info['total_videos']}; there are {films}")
    size = dataset.info.get("chunks_size") or metadata.CHUNK
    chunks = len({episode.index // size for episode in dataset.episodes})
    if dataset.info.get("total_chunks", chunks) != chunks:
        found.note(metadata.INFO, None, f"total_chunks is {dataset.info['total_chunks']}; there are {chunks}")
    splits, count = dataset.info.get("splits", {}), len(dataset.episodes)
    if not isinstance(splits, dict):
        found.note(
            metadata.INFO, None, f"splits is {splits!r:.200}; expected an object such as {{'train': '0:{count}'}}"
        )
        return
    for name, text in splits.items():
        ends = re.fullmatch(r"(\d{1,9}):(\d{1,9})", text) if isinstance(text, str) else None
        if not ends or not 0 <= int(ends[1]) < int(ends[2]) <= count:
            found.note(metadata.INFO, None, f"splits: {name} is {text!r:.200}; expected FIRST:END within 0:{count}")
