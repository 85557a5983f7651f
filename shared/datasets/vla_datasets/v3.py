"""LeRobot v3.0, where a file has several episodes: what meta/ says, checked against the files.

Source: huggingface/lerobot 0.6.1 (lerobot/datasets).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from vla_common.regular_files import Opener
from vla_datasets import metadata, tables, videos
from vla_datasets.errors import DatasetError
from vla_datasets.metadata import Episode

VERSION = "v3.0"
EPISODES, TASKS = "meta/episodes", "meta/tasks.parquet"
FILE_PATH = "chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
DATA_PATH, VIDEO_PATH = f"data/{FILE_PATH}", "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
NUMBERS = ("episode_index", "length", "dataset_from_index", "dataset_to_index", "data/chunk_index", "data/file_index")
CLIP = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")  # of each video, after videos/KEY/
STATS = "stats/"  # prefix of the columns of an episode's statistics
TEXT_COLUMNS = ("task", "__index_level_0__")  # of tasks.parquet: pandas writes an index under its name or this one
COPY_AGAIN = "copy or download the set again"

PathOf = Callable[[str, Sequence[str], Sequence[int], str], Path]  # template's name, fields, numbers, video feature


@dataclass(frozen=True)
class Location:
    """Where an episode is: `length` rows of `path` from `first_row` on, and a clip per video feature."""

    path: Path
    first_row: int
    length: int
    clips: Mapping[str, videos.Clip]


def episode_files(directory: Path) -> list[Path]:
    """Return the files of meta/episodes in order. Raises DatasetError if there is none."""
    paths = sorted((directory / EPISODES).glob("*/*.parquet"))
    if not paths:
        raise DatasetError(
            f"{directory / EPISODES} has no chunk-000/file-000.parquet, which LeRobot {VERSION} requires"
        )
    return paths


def read_episodes(
    directory: Path, video_keys: Sequence[str], fps: float, path_of: PathOf, opener: Opener | None
) -> tuple[list[Episode], list[Location]]:
    """Return the episodes and their locations. Raises DatasetError where their numbers or rows do not follow."""
    episodes: list[Episode] = []
    locations: list[Location] = []
    rows_before: dict[Path, int] = defaultdict(int)
    end, last_file = 0, (0, 0)
    for path in episode_files(directory):
        names = (*NUMBERS, "tasks", *(f"videos/{key}/{name}" for key in video_keys for name in CLIP))
        table = tables.read(path, opener, names)
        numbers = [_whole_numbers(table, name, path) for name in NUMBERS]
        tasks = table.column("tasks").to_pylist() if "tasks" in table.column_names else [[]] * table.num_rows
        clips = {key: _clip_columns(table, key, path) for key in video_keys}
        for row, (listed, index, length, first, last, *file) in enumerate(zip(tasks, *numbers, strict=True)):
            at = f"{path}, row {row}"
            if index != len(episodes):
                raise DatasetError(f"{at}: episode_index is {index}; expected {len(episodes)}")
            if (first, last) != (end, end + length):
                stated = f"dataset_from_index {first}, dataset_to_index {last}, length {length}"
                raise DatasetError(
                    f"{at}: {stated}; expected {end} to {end + length}, right after the previous episode"
                )
            if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
                raise DatasetError(f"{at}: tasks is {listed!r:.200}; expected a list of instructions")
            if tuple(file) < last_file:
                raise DatasetError(f"{at}: episode {index} is in a data file before the last episode's")
            episode_clips = {}
            for key, columns in clips.items():
                *video_file, start_s, end_s = (column[row] for column in columns)
                clip = videos.Clip(path_of("video_path", metadata.FILE_FIELDS, video_file, key), start_s, length)
                if abs((end_s - start_s) * fps - length) > 0.5:
                    label = clip_label(clip, index, fps, end_s)
                    raise DatasetError(f"{label}; its {length} rows take {length / fps:.3f} s: {COPY_AGAIN}")
                episode_clips[key] = clip
            data = path_of("data_path", metadata.FILE_FIELDS, file, "")
            episodes.append(Episode(index, tuple(listed), length))
            locations.append(Location(data, rows_before[data], length, episode_clips))
            rows_before[data] += length
            end, last_file = last, tuple(file)
    return episodes, locations


def _whole_numbers(table: pa.Table, name: str, path: Path) -> list[int]:
    values = _column(table, name, path)
    if values.dtype.kind not in "iu" or (len(values) and not 0 <= values.min() <= values.max() <= metadata.MAX_NUMBER):
        raise DatasetError(f"{path}: {name} must be integers from 0 to {metadata.MAX_NUMBER:,}")
    return [int(value) for value in values]


def _clip_columns(table: pa.Table, key: str, path: Path) -> list[list[Any]]:
    """Return the columns of CLIP for a video feature."""
    columns: list[list[Any]] = [_whole_numbers(table, f"videos/{key}/{name}", path) for name in CLIP[:2]]
    for name in CLIP[2:]:
        values = _column(table, f"videos/{key}/{name}", path)
        if values.dtype.kind not in "iuf" or not (np.isfinite(values) & (values >= 0)).all():
            raise DatasetError(f"{path}: videos/{key}/{name} must be seconds from 0 on")
        columns.append(values.astype(float).tolist())
    return columns


def _column(table: pa.Table, name: str, path: Path) -> np.ndarray:
    if name not in table.column_names:
        raise DatasetError(f"{path} has no column {name}; LeRobot {VERSION} requires it")
    return tables.array(table.column(name), f"column {name} of {path}")


def read_tasks(directory: Path, opener: Opener | None) -> dict[int, str]:
    """Return the instructions of tasks.parquet by task_index, whatever the order of its rows."""
    path = directory / TASKS
    table = tables.read(path, opener)
    pandas = json.loads((table.schema.metadata or {}).get(b"pandas", b"{}"))
    names = ("task", *pandas.get("index_columns", ()), *TEXT_COLUMNS)
    text = next((name for name in names if isinstance(name, str) and name in table.column_names), None)
    if text is None or not (
        pa.types.is_string(kind := table.schema.field(text).type) or pa.types.is_large_string(kind)
    ):
        raise DatasetError(f"{path} has no text of the tasks; expected a column task, or the texts as pandas' index")
    indices, texts = _whole_numbers(table, "task_index", path), table.column(text).to_pylist()
    if len(set(indices)) != len(indices) or None in texts:
        raise DatasetError(f"{path}: a task_index is listed twice, or a task has no text")
    return dict(sorted(zip(indices, texts, strict=True)))


def tasks_of_rows(
    episodes: Sequence[Episode], locations: Sequence[Location], tasks: Mapping[int, str], opener: Opener | None
) -> list[Episode]:
    """Return the episodes with the instructions of their rows' task_index; without that column, with the listed ones.

    Raises DatasetError where a file's rows are not those of its episodes.
    """
    complete = []
    for path, pairs in groupby(zip(episodes, locations, strict=True), key=lambda pair: pair[1].path):
        group = list(pairs)
        table = tables.read(path, opener, ("episode_index", "task_index"))
        indices = _column(table, "episode_index", path)
        expected = np.repeat([episode.index for episode, _ in group], [episode.length for episode, _ in group])
        if len(indices) != len(expected):
            listed = f"{EPISODES} lists {len(expected)}, of episode {group[0][0].index} to {group[-1][0].index}"
            raise DatasetError(f"{path} has {len(indices)} rows; {listed}: {COPY_AGAIN}")
        if len(odd := np.flatnonzero(indices != expected)):
            stated = f"episode_index is {indices[odd[0]]}; {EPISODES} says {expected[odd[0]]}"
            raise DatasetError(f"{path}, row {odd[0]}: {stated}: {COPY_AGAIN}")
        if "task_index" not in table.column_names:
            complete += [episode for episode, _ in group]
            continue
        numbers = _column(table, "task_index", path)
        if len(odd := np.flatnonzero(~np.isin(numbers, list(tasks)))):
            text = f"task_index is {numbers[odd[0]]}, which {TASKS} does not have (it has {len(tasks)} tasks)"
            raise DatasetError(f"{path}, row {odd[0]}: {text}: {COPY_AGAIN}")
        for episode, location in group:
            own = numbers[location.first_row : location.first_row + episode.length].tolist()
            texts = tuple(tasks[number] for number in dict.fromkeys(own))
            complete.append(Episode(episode.index, texts or episode.tasks, episode.length))
    return complete


def check_clips(clips: Sequence[videos.Clip], fps: float) -> None:
    """Raise DatasetError for a missing video, one that is too short, or episodes that share frames.

    clips: of one camera, one per episode.
    """
    in_order = sorted(enumerate(clips), key=lambda entry: (entry[1].path, entry[1].start_s))
    for path, group in groupby(in_order, key=lambda entry: entry[1].path):
        count, end = videos.frame_count(path), 0
        videos.require_end(path)
        for index, clip in group:
            first, label = round(clip.start_s * fps), clip_label(clip, index, fps)
            if first < end:
                raise DatasetError(f"{label}; the episode before ends at {end / fps:.3f} s: {COPY_AGAIN}")
            if (end := first + (clip.length or 0)) > count:
                raise DatasetError(f"{label}; the video has {count} frames, {count / fps:.3f} s: {COPY_AGAIN}")


def clip_label(clip: videos.Clip, index: int, fps: float, end_s: float | None = None) -> str:
    """Return where an episode's clip is, for errors. end_s: as it is stated, if it does not fit the length."""
    end_s = clip.start_s + (clip.length or 0) / fps if end_s is None else end_s
    return f"{clip.path}: {EPISODES} says that episode {index} is at {clip.start_s:.3f} to {end_s:.3f} s"


def read_statistics(directory: Path) -> Iterator[tuple[Path, int, int, dict[str, dict[str, Any]]]]:
    """Yield (file, row, episode, {feature: {name: values}}) of the statistics in meta/episodes."""
    for path in episode_files(directory):
        table = tables.read(path)
        names = [name for name in table.column_names if name.startswith(STATS)]
        indices = _whole_numbers(table, "episode_index", path)
        for row, values in enumerate(table.select(names).to_pylist()):
            stats: dict[str, dict[str, Any]] = defaultdict(dict)
            for name, value in values.items():
                key, _, statistic = name.removeprefix(STATS).rpartition("/")
                stats[key][statistic] = value
            yield path, row, indices[row], dict(stats)


def with_statistics(table: pa.Table, stats: Sequence[Mapping[str, Mapping[str, Any]]]) -> pa.Table:
    """Return a table of meta/episodes with these statistics, one entry per row, in place of its own."""
    table = table.drop_columns([name for name in table.column_names if name.startswith(STATS)])
    names = dict.fromkeys((key, name) for entry in stats for key, of in entry.items() for name in of)
    for key, name in names:
        values = [entry.get(key, {}).get(name) for entry in stats]
        table = table.append_column(f"{STATS}{key}/{name}", pa.array(values))
    return table


def write_statistics(directory: Path, stats: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[Path]:
    """Replace the statistics in meta/episodes, an entry per episode; return the files."""
    first, paths = 0, episode_files(directory)
    for path in paths:
        table = tables.read(path)
        changed = with_statistics(table, stats[first : first + table.num_rows])
        first += table.num_rows
        with metadata.replacing(path) as partial:
            tables.pq.write_table(changed, partial)
    return paths
