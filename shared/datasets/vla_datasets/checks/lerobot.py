"""Check a data set in LeRobot's layout: meta/, the rows and frames of every episode, and the stored statistics."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from vla_datasets import metadata, statistics, tables, v3, videos
from vla_datasets.checks import Findings
from vla_datasets.checks.modality import check_modality
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset, incomplete
from vla_datasets.metadata import Episode
from vla_datasets.writing import DEFAULT_COLUMNS

WRITTEN = ("robot_type", "total_episodes", "total_frames", "total_tasks", "total_chunks", "chunks_size", "splits")
AXIS_NAMES = (("height",), ("width",), ("channel", "channels", "rgb"))  # accepted names of an image's axes
TOLERANCE_S = 1e-4  # LeRobot's own, of time stamps
LONG_GROUP = 30  # frames between key frames; with more, reading single frames slows training down
IMAGE_ROOM = 0.05  # of 0 to 1: how far a mean or std of an episode's images may be from the decoded frames'
STALE = "outdated: `--write-stats` writes them again"
Columns = dict[str, np.ndarray]


def check(findings: Findings, tick: Callable[[int, int], None]) -> None:
    """Add the faults of the data set in the findings' directory."""
    try:
        dataset = LeRobotDataset(findings.directory)
        check_meta(findings, dataset)
        episodes = EpisodeChecks(findings, dataset)
        for number, episode in enumerate(dataset.episodes):
            tick(number, len(dataset.episodes))
            episodes.check(episode)
    except DatasetError as error:  # without lists and paths, no other check can run
        findings.error(metadata.INFO, error)
        return
    check_totals(findings, dataset, episodes.rows)
    check_statistics(findings, dataset, episodes)
    if dataset.modality is not None:
        check_modality(findings, dataset, next(iter(episodes.columns.values()), None))


def check_meta(findings: Findings, dataset: LeRobotDataset) -> None:
    """Check info.json and the lists of episodes and tasks, and for files of data/ that no episode has."""
    of_v2 = ("total_chunks",) if dataset.is_v3 else ()
    if missing := [name for name in WRITTEN if name not in (*dataset.info, *of_v2)]:
        findings.add(metadata.INFO, f"lacks {', '.join(missing)}")
    for key, feature in dataset.features.items():
        shape, names = feature.get("shape"), feature.get("names")
        if not isinstance(shape, list) or not all(type(size) is int and size > 0 for size in shape):
            findings.add(metadata.INFO, f"feature {key}: shape is {shape!r}; expected a list of sizes")
        elif feature["dtype"] == "video":
            are_named = isinstance(names, list) and all(any(name in names for name in axis) for axis in AXIS_NAMES)
            if len(shape) != 3:
                findings.add(metadata.INFO, f"feature {key}: shape is {shape}; expected height, width and 3 colours")
            elif not are_named:
                findings.add(metadata.INFO, f"feature {key}: names is {names!r}; expected height, width and channel")
            rate = _video_info(feature).get("video.fps")
            if rate is None:
                findings.note(metadata.INFO, f"feature {key}: no video.fps in info; GR00T's loader requires it")
            elif rate != dataset.info["fps"]:
                findings.add(metadata.INFO, f"feature {key}: video.fps is {rate}; fps is {dataset.info['fps']}")

    listed, instructions = dataset.episodes_name, dataset.tasks_name
    counts = Counter(episode.index for episode in dataset.episodes)
    for index, count in counts.items():
        if count > 1:
            findings.add(listed, f"episode {index} is listed {count} times")
    if gaps := sorted(set(range(len(counts))) - counts.keys()):
        findings.add(listed, f"episodes must be numbered from 0; {gaps[0]} is missing")
    known = set(dataset.tasks.values())
    for row, episode in enumerate(dataset.episodes, 0 if dataset.is_v3 else 1):
        if not episode.length:
            findings.add(listed, "length is 0; expected at least one step", row)
        for text in episode.tasks:
            if text not in known:
                findings.add(listed, f"task {text!r} is not in {instructions}", row)
        if not episode.tasks:
            findings.add(listed, "tasks is empty; expected the instruction", row)

    if not dataset.is_v3:  # else the reader refuses duplicates
        count = sum(1 for _ in metadata.read_lines(dataset.directory / metadata.TASKS))
        if count != len(dataset.tasks):
            findings.add(metadata.TASKS, f"{count} lines have {len(dataset.tasks)} task_index; remove the duplicate")
    for index, text in dataset.tasks.items():
        if not text.strip():
            findings.add(instructions, f"task {index} is empty; expected an instruction")

    expected = {dataset.data_path(episode.index) for episode in dataset.episodes}
    for path in sorted(metadata.files_below(dataset.directory / "data")):
        if path.suffix == ".parquet" and path not in expected:
            findings.add(path, f"belongs to no episode of {listed}; statistics of GR00T's loader count it")


def _video_info(feature: dict[str, Any]) -> dict[str, Any]:
    return feature.get("info") or feature.get("video_info") or {}


class EpisodeChecks:
    """The checks of each episode's rows and frames, and what the checks of the whole set need of them.

    rows     of all tables; the listed length where a table cannot be read
    listed   rows by the list of episodes
    columns  each episode's columns of numbers
    images   image statistics by (episode, feature)
    """

    def __init__(self, findings: Findings, dataset: LeRobotDataset):
        self.findings, self.dataset = findings, dataset
        self.rows = self.listed = 0
        self.columns: dict[int, Columns] = {}
        self.images: dict[tuple[int, str], dict[str, np.ndarray]] = {}
        self._videos = videos.OpenVideos()

    def check(self, episode: Episode) -> None:
        """Check one episode."""
        findings, dataset, path = self.findings, self.dataset, self.dataset.data_path(episode.index)
        findings.first_row, columns, count = dataset.first_row(episode.index), None, episode.length
        try:
            table = dataset.rows(episode.index)
            columns, count = tables.columns(table, path), table.num_rows
        except DatasetError as error:
            findings.error(path, error)
        if columns is not None:
            if count != episode.length:
                findings.add(path, f"{count} rows; {dataset.episodes_name} says length {episode.length}")
            self._check_columns(path, table, columns)
            if not count:
                findings.add(path, f"has no rows; training skips episode {episode.index}")
            self._check_default_columns(episode, path, columns)
            self.columns[episode.index] = columns
        self.rows, self.listed = self.rows + count, self.listed + episode.length
        findings.first_row = 0
        for key in dataset.video_keys if episode.length else ():
            images = None
            try:
                if dataset.features[key]["dtype"] == "video":
                    images = self._check_video(episode, key, columns)
                elif columns is not None:  # else the table is reported already
                    images = dataset.frames(episode.index, key)
            except DatasetError as error:
                findings.error(dataset.images_path(episode.index, key), error)
            if images is not None and len(images) and images.shape[-1] == 3:
                self.images[episode.index, key] = statistics.of_images(images)

    def _check_columns(self, path: Path, table: pa.Table, columns: Columns) -> None:
        features = self.dataset.features
        for key, feature in features.items():
            if feature["dtype"] == "video":
                continue
            if key not in table.column_names:
                self.findings.add(path, f"column {key} is missing; info.json lists it")
                continue
            if key not in columns:
                continue  # images
            values, shape = columns[key], tuple(feature.get("shape") or ())
            size = int(np.prod(shape)) if all(type(side) is int for side in shape) else 0
            width = int(np.prod(values.shape[1:]))
            if values.dtype != object and width != size:
                self.findings.add(path, f"column {key} has {width} numbers a row; info.json says shape {list(shape)}")
            kind, expected = table.schema.field(key).type, tables.TYPES.get(feature["dtype"])
            while hasattr(kind, "value_type"):  # of lists
                kind = kind.value_type
            if expected is not None and kind != expected:
                is_grave = pa.types.is_floating(kind) != pa.types.is_floating(expected)
                self.findings.add(path, f"column {key} is {kind}; info.json says {feature['dtype']}", grave=is_grave)
            self.findings.not_finite(path, f"column {key}", values)
        for key in columns.keys() - features.keys():
            self.findings.note(path, f"column {key} is not a feature of info.json")

    def _check_default_columns(self, episode: Episode, path: Path, columns: Columns) -> None:
        """Check the columns that every LeRobot set has."""
        findings, dataset = self.findings, self.dataset
        if missing := [name for name in DEFAULT_COLUMNS if name not in columns and name not in dataset.features]:
            is_grave = "timestamp" in missing or "task_index" in missing
            findings.add(path, f"lacks LeRobot's own column {', '.join(missing)}", grave=is_grave)
        steps = np.arange(len(next(iter(columns.values()), ())))
        index = columns.get("index", np.zeros(0)).ravel()
        # An episode whose length differs from the listed one is reported once, not at every index after it.
        first_row = self.listed if len(index) and index[0] == self.listed else self.rows
        numbers = {
            "frame_index": steps,
            "index": first_row + steps,
            "episode_index": np.full(len(steps), episode.index),
        }
        for name, values in numbers.items():
            if name in columns:
                stated = columns[name].ravel()
                for row in np.flatnonzero(stated != values)[:1]:
                    findings.add(path, f"{name} is {stated[row]}; expected {values[row]}", int(row))

        times = columns.get("timestamp", np.zeros(0)).ravel()
        if times.dtype.kind == "f" and len(times) >= 2:
            gaps, gap = np.diff(times.astype(np.float64)), 1 / dataset.fps
            if len(odd := np.flatnonzero(~(np.abs(gaps - gap) <= TOLERANCE_S))):
                stated = f"timestamp is {gaps[odd[0]]:.4f} s after the last"
                findings.add(path, f"{stated}; expected {gap:.4f} s at {dataset.fps:g} fps", int(odd[0]) + 1)
            elif abs(times[0]) > TOLERANCE_S:
                stated = f"timestamp begins at {times[0]:.4f} s"
                findings.add(path, f"{stated}; expected 0: loaders with timestamps read later frames", 0)

        tasks = columns.get("task_index", np.zeros(0)).ravel()
        unknown = [row for row, task in enumerate(tasks) if task not in dataset.tasks]
        if unknown:
            text = f"task_index is {tasks[unknown[0]]}, which is not in {dataset.tasks_name}"
            findings.add(path, text, unknown[0])
            return
        for row, task in enumerate(tasks):
            if (text := dataset.tasks[int(task)]) not in episode.tasks:
                stated = " or ".join(map(repr, episode.tasks)) or "none"
                findings.add(path, f"task_index is {task}, {text!r}; {dataset.episodes_name} says {stated}", row)
                return

    def _check_video(self, episode: Episode, key: str, columns: Columns | None) -> np.ndarray | None:
        """Check an episode's video; return its frames. Raises DatasetError where they cannot be decoded."""
        findings, dataset = self.findings, self.dataset
        clip = dataset.clip(episode.index, key)
        path, feature = clip.path, dataset.features[key]
        try:
            video = self._videos[path]
        except DatasetError as error:
            named = (dataset.modality or {}).get("video")  # GR00T reads the videos that modality.json names
            is_used = not isinstance(named, dict) or key in {
                (part or {}).get("original_key") or name for name, part in named.items()
            }
            if path.is_file() or path.parent.is_dir() or is_used:
                findings.error(path, error)
            elif episode == dataset.episodes[0]:
                findings.note(metadata.INFO, f"feature {key} has no videos; modality.json does not use it")
            return None
        if not dataset.is_v3:
            rows = episode.length if columns is None else len(next(iter(columns.values()), ()))
            if len(video) != rows:
                findings.add(path, f"{len(video)} frames; the episode has {rows} rows")
        if not clip.start_s:  # the first in its file
            if video.rate is None or abs(float(video.rate) - dataset.fps) > 1e-3:
                rate = float(video.rate or 0)
                findings.add(path, f"{rate:g} frames per second; info.json says {dataset.fps:g}")
            shape, stated_shape = [video.height, video.width, 3], feature.get("shape")
            if list(stated_shape or ()) not in (shape, [3, *shape[:2]]):
                findings.add(path, f"images of {shape}; info.json says {stated_shape}")
            info, codec = _video_info(feature), _codec(video.codec)
            if codec != _codec(info.get("video.codec", video.codec)):
                findings.add(path, f"the codec is {video.codec}; info.json says {info['video.codec']}")
            if codec != videos.CODEC:
                problem = f"the codec is {video.codec}, which some decoders cannot read (decord: AV1)"
                findings.add(path, f"{problem}; use H.264")
            if video.pixels != info.get("video.pix_fmt", video.pixels):
                findings.add(path, f"pixels are {video.pixels}; info.json says {info['video.pix_fmt']}")
            if video.longest_group > LONG_GROUP:
                text = f"a key frame only every {video.longest_group} frames: reading one frame decodes that many"
                findings.note(path, f"{text}; training reads it slowly")
            if len(video) and abs(video.seconds[0]) > 1e-3:
                text = f"starts at {video.seconds[0]:.3f} s; loaders with timestamps read other frames"
                findings.add(path, text, 0)
        return self._videos.frames(clip)


def _codec(name: str) -> str:
    """Return the codec of an encoder's or decoder's name."""
    return "av1" if "av1" in name else "h264" if name in ("avc1", "libx264") else name


def check_totals(findings: Findings, dataset: LeRobotDataset, rows: int) -> None:
    """Check info.json's sums against what was read."""
    count, size = len(dataset.episodes), dataset.info.get("chunks_size") or metadata.CHUNK
    cameras = sum(feature["dtype"] == "video" for feature in dataset.features.values())
    chunks = len({episode.index // size for episode in dataset.episodes})
    grave = {"total_episodes": count, "total_frames": rows, "total_tasks": len(dataset.tasks)}
    for name, value in (grave | {"total_videos": cameras * count, "total_chunks": chunks}).items():
        if dataset.info.get(name, value) != value:
            text = f"{name} is {dataset.info[name]}; the data set has {value}"
            findings.add(metadata.INFO, text, grave=name in grave)
    splits = dataset.info.get("splits", {})
    for name, text in splits.items() if isinstance(splits, dict) else [("all", splits)]:
        ends = re.fullmatch(r"(\d{1,9}):(\d{1,9})", str(text))
        if not ends or not int(ends[1]) < int(ends[2]) <= count:
            findings.note(metadata.INFO, f"splits: {name} is {text!r:.200}; expected FIRST:END within 0:{count}")


def check_statistics(findings: Findings, dataset: LeRobotDataset, episodes: EpisodeChecks) -> None:
    """Check stats.json, and from v2.1 on the statistics of every episode, against rows and frames."""
    if len(episodes.columns) == len(dataset.episodes) > 0:
        try:
            _check_stats_json(findings, dataset, episodes)
        except DatasetError as error:
            findings.error(metadata.STATS, error)
        except ValueError as error:  # columns of different widths: already reported per file
            findings.note(metadata.STATS, f"not compared with the rows: {error}")
    if dataset.info["codebase_version"] == "v2.0":
        return
    path = dataset.directory / (v3.EPISODES if dataset.is_v3 else metadata.EPISODES_STATS)
    missing = {episode.index for episode in dataset.episodes}
    try:
        for file, row, index, stats in _episode_statistics(dataset):
            if type(index) is int:
                missing.discard(index)
            if not isinstance(stats, dict):
                findings.add(file, "stats is missing", row)
                continue
            columns = episodes.columns.get(index, {}) if type(index) is int else {}
            for key in sorted(stats.keys() & columns.keys()):
                if columns[key].dtype != object and len(columns[key]) and isinstance(stats[key], dict):
                    compared = {name: stats[key][name] for name in ("min", "max", "mean", "std") if name in stats[key]}
                    _compare(findings, file, row, key, compared, columns[key])
                    rows = len(columns[key])
                    count = np.asarray(stats[key].get("count", rows), object).ravel().tolist()
                    if count != [rows]:
                        text = f"{key}: count is {count!r:.100}; the episode has {rows} rows; {STALE}"
                        findings.add(file, text, row)
            for key in stats.keys() & set(dataset.video_keys):
                if (index, key) in episodes.images and isinstance(stats[key], dict):
                    _compare_images(findings, file, row, key, stats[key], episodes.images[index, key])
    except DatasetError as error:
        findings.error(path, error)
        return
    if missing:
        problem = f"has no line for episode {min(missing)} ({len(missing)} are missing)"
        findings.add(path, f"{problem}; LeRobot requires them: `--write-stats` writes them")


def _check_stats_json(findings: Findings, dataset: LeRobotDataset, episodes: EpisodeChecks) -> None:
    stated = dataset.stated_statistics()
    if stated is None:
        message = "is missing; GR00T's loader will compute and write it: `--write-stats` does so now"
        findings.add(metadata.STATS, message, grave=dataset.info["codebase_version"] != "v2.1")
        return
    for key, name in incomplete(stated):
        findings.add(metadata.STATS, f"{key} lacks {name}; GR00T's loader then computes all again and overwrites it")
    for key, rows in statistics.all_rows(episodes.columns.values()).items():
        if key in dataset.features and key not in stated:
            findings.add(metadata.STATS, f"lacks column {key}; {STALE}")
        _compare(findings, metadata.STATS, None, key, stated.get(key, {}), rows)


def _compare(
    findings: Findings, file: str, row: int | None, key: str, stated: dict[str, Any], rows: np.ndarray
) -> None:
    """Add the worst departure of a column's stored statistics from its rows."""
    try:
        departures = list(statistics.departures(key, stated, rows))
    except ValueError as error:
        findings.add(file, str(error), row)
        return
    for text, is_grave in sorted(departures, key=lambda departure: not departure[1])[:1]:
        advice = STALE if is_grave else "wider than the rows need; `--write-stats` writes the rows'"
        findings.add(file, f"{text}; {advice}", row, is_grave)


def _compare_images(
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
            theirs, ours = (", ".join(f"{value:.3g}" for value in of[:3]) for of in (values, expected))
            findings.add(file, f"{key}: {name} is [{theirs}]; the frames' is [{ours}], of 0 to 1; {STALE}", row)


def _episode_statistics(dataset: LeRobotDataset) -> Iterator[tuple[str, int, Any, Any]]:
    """Yield (file, row, episode, statistics) as a set of v2.1 or v3.0 stores them."""
    if dataset.is_v3:
        for path, row, index, stats in v3.read_statistics(dataset.directory):
            yield str(path), row, index, stats
        return
    for row, line in metadata.read_lines(dataset.directory / metadata.EPISODES_STATS):
        yield metadata.EPISODES_STATS, row, line.get("episode_index"), line.get("stats")
