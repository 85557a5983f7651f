"""LeRobot's data sets v2.0, v2.1 and v3.0, with GR00T's modality.json where there is one.

Source: huggingface/lerobot 0.6.1 and before v3.0 (lerobot/datasets), Isaac-GR00T at 4af2b622 (gr00t/data/dataset.py).
"""

from __future__ import annotations

import os
import shlex
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from vla_common.regular_files import Opener
from vla_datasets import metadata, statistics, tables, v3, videos
from vla_datasets.dataset import Dataset
from vla_datasets.errors import DatasetError

VERSIONS = ("v2.0", "v2.1", v3.VERSION)
REQUIRED = ("codebase_version", "fps", "features", "data_path")
LIBRARY = "take the set's revision v3.0 or v2.1 from the hub"
CACHED = 64  # episodes whose columns stay in memory


class LeRobotDataset(Dataset):
    """A data set in a directory.

    opener: how files of numbers and of meta/ are opened; open()'s own by default. It decides whether links are
    followed: a data set's paths are checked by name only.
    """

    def __init__(self, directory: str | Path, opener: Opener | None = None):
        self.directory, self.opener = Path(directory).expanduser().absolute(), opener
        self.info = _read_info(self.directory / metadata.INFO, opener)
        self.modality = self._read_optional(metadata.MODALITY)
        for kind in ("state", "action", "video", "annotation"):
            parts = (self.modality or {}).get(kind) or {}
            if not isinstance(parts, dict) or not all(isinstance(part or {}, dict) for part in parts.values()):
                stated = f"{self.directory / metadata.MODALITY}: {kind} is {parts!r:.200}"
                raise DatasetError(f"{stated}; expected an object of parts, each an object")
        self.source = self._read_optional(metadata.SOURCE)
        self._videos, self._columns = videos.OpenVideos(), OrderedDict()
        self._file: tuple[Path, Sequence[str] | None, Any] | None = None  # the data file read last, in v3.0
        self._statistics: dict[bool, statistics.Statistics] = {}  # of all episodes, or without those left out
        if not self.is_v3:
            self.episodes = metadata.episodes(self.directory, opener)
            self.tasks = metadata.tasks(self.directory, opener)
            return
        keys = [key for key in self.video_keys if self.features[key]["dtype"] == "video"]
        self.tasks = v3.read_tasks(self.directory, opener)
        self.episodes, self._locations = v3.read_episodes(self.directory, keys, self.fps, self._path, opener)
        for name, count in (("total_episodes", len(self.episodes)), ("total_frames", len(self))):
            if self.info.get(name, count) != count:
                stated = f"{name} is {self.info[name]}; {v3.EPISODES} has {count}"
                raise DatasetError(f"{self.directory / metadata.INFO}: {stated}: {v3.COPY_AGAIN}")
        self.episodes = v3.tasks_of_rows(self.episodes, self._locations, self.tasks, opener)
        self._check_clips(keys)

    def _check_clips(self, keys: Sequence[str]) -> None:
        for key in keys:
            v3.check_clips([location.clips[key] for location in self._locations], self.fps)

    @property
    def is_v3(self) -> bool:
        """Whether a file has several episodes."""
        return bool(self.info["codebase_version"] == v3.VERSION)

    @property
    def episodes_name(self) -> str:
        """The name of the list of episodes, for messages."""
        return v3.EPISODES if self.is_v3 else metadata.EPISODES

    @property
    def tasks_name(self) -> str:
        """The name of the list of tasks, for messages."""
        return v3.TASKS if self.is_v3 else metadata.TASKS

    def data_path(self, episode_index: int) -> Path:
        """Return the path of an episode's rows, in v3.0 of other episodes' too."""
        if self.is_v3:
            return self._location(episode_index).path
        return self._path("data_path", metadata.EPISODE_FIELDS, self._episode_numbers(episode_index))

    def clip(self, episode_index: int, video_key: str) -> videos.Clip:
        """Return an episode's video, in v3.0 its part of one."""
        if self.is_v3:
            return self._location(episode_index).clips[video_key]
        numbers = self._episode_numbers(episode_index)
        return videos.Clip(self._path("video_path", metadata.EPISODE_FIELDS, numbers, video_key))

    def video_path(self, episode_index: int, video_key: str) -> Path:
        """Return the path of an episode's video, in v3.0 of other episodes' too."""
        return self.clip(episode_index, video_key).path

    def first_row(self, episode_index: int) -> int:
        """Return the row of its file that an episode starts at."""
        return self._location(episode_index).first_row if self.is_v3 else 0

    def _location(self, episode_index: int) -> v3.Location:
        if not 0 <= episode_index < len(self._locations):
            raise DatasetError(f"{self.name} has no episode {episode_index}; it has {len(self._locations)}")
        return self._locations[episode_index]

    def _episode_numbers(self, episode_index: int) -> tuple[int, int]:
        return episode_index // (self.info.get("chunks_size") or metadata.CHUNK), episode_index

    def _path(self, pattern: str, fields: Sequence[str], numbers: Sequence[int], video_key: str = "") -> Path:
        if self.info.get(pattern) is None:
            raise DatasetError(f"{self.directory / metadata.INFO} has no {pattern}; expected {metadata.VIDEO_PATH}")
        name = metadata.fill_template(self.info[pattern], dict(zip(fields, numbers, strict=True)), video_key)
        if name.startswith("/") or ".." in Path(name).parts:
            problem = f"{self.directory / metadata.INFO}: {pattern} gives {name!r:.200}, outside the data set"
            raise DatasetError(f"{problem}; expected a path in it, relative and without '..'")
        return self.directory / name

    def images_path(self, episode_index: int, video_key: str) -> Path:
        is_video = self.features[video_key]["dtype"] == "video"
        return self.video_path(episode_index, video_key) if is_video else self.data_path(episode_index)

    def columns(self, episode_index: int) -> dict[str, np.ndarray]:
        if episode_index not in self._columns:
            self._columns[episode_index] = self._read_columns(episode_index)
            if len(self._columns) > CACHED:
                self._columns.popitem(last=False)
        self._columns.move_to_end(episode_index)
        return self._columns[episode_index]

    def rows(self, episode_index: int, names: Sequence[str] | None = None) -> pa.Table:
        """Return an episode's table, all columns by default."""
        path = self.data_path(episode_index)
        if not self.is_v3:
            return tables.read(path, self.opener, names)
        location = self._location(episode_index)
        span = location.first_row, location.first_row + location.length
        images = [key for key in self.video_keys if self.features[key]["dtype"] == "image"]
        numbers = tuple(name for name in names or self.column_keys if name not in images)
        if self._file is None or self._file[:2] != (path, numbers):
            self._file = path, numbers, tables.read(path, self.opener, numbers)
        table = self._file[2].slice(location.first_row, location.length)
        for key in images if names is None else set(images).intersection(names):
            column = tables.read(path, self.opener, [key], span)
            table = table.append_column(key, column.column(key)) if key in column.column_names else table
        return table

    def _read_columns(self, episode_index: int, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        if self.is_v3:
            names = tuple(names or self.column_keys)
        return tables.columns(self.rows(episode_index, names), self.data_path(episode_index))

    def _all_columns(self, names: Sequence[str] | None = None) -> Iterator[dict[str, np.ndarray]]:
        return (self._read_columns(episode.index, names) for episode in self.episodes)

    def frames(self, episode_index: int, video_key: str, indices: Sequence[int] | None = None) -> np.ndarray:
        kind = self.features.get(video_key, {}).get("dtype")
        if kind == "video":
            return self._videos.frames(self.clip(episode_index, video_key), indices)
        if kind != "image":
            raise videos.missing_images(video_key, self.name, self.video_keys)
        path = self.data_path(episode_index)
        table = self.rows(episode_index, [video_key])
        if video_key not in table.column_names:
            raise DatasetError(f"{path} has no column {video_key}; info.json lists images there")
        rows = table.column(video_key).to_pylist()
        numbers = range(len(rows)) if indices is None else [int(index) for index in indices]
        images = []
        for row in numbers:
            if not (isinstance(rows[row], dict) and isinstance(rows[row].get("bytes"), bytes)):
                stored = f"{path}: {video_key}, row {row} is {rows[row]!r:.200}"
                raise DatasetError(f"{stored}; expected a PNG or JPEG file in its bytes, not the path of one")
            images.append(videos.decode_image(rows[row]["bytes"], f"{video_key}, row {row} of {path}"))
        return np.stack(images)

    def statistics(self) -> statistics.Statistics:
        """Return {feature: {min, max, mean, std, q01, q99}}, float64 [n]: from stats.json, else from the rows.

        If episodes are left out, from the rows of the rest.
        """
        is_partial = bool(self.left_out)
        if is_partial not in self._statistics:
            if is_partial or not (stated := self._complete_statistics()):
                self._statistics[is_partial] = self.computed_statistics()
            else:
                names = statistics.NAMES
                self._statistics[is_partial] = {
                    key: {name: np.asarray(of[name], np.float64) for name in names} for key, of in stated.items()
                }
        return self._statistics[is_partial]

    def _complete_statistics(self) -> dict[str, dict[str, list]] | None:
        """Return stats.json if it has everything that `statistics` returns, else None."""
        stated = self.stated_statistics() or {}
        return None if set(self.column_keys) - stated.keys() or incomplete(stated) else stated

    def require_current_statistics(self, columns: Iterable[str], names: Collection[str] | None = None) -> list[str]:
        """Compare what `statistics` takes from stats.json with the rows of these columns; return notes.

        names: the statistics to compare; None: all. Raises DatasetError with the stated and the rows' number, and the
        command that writes the file again.
        """
        stated = self._complete_statistics()
        if self.left_out or not stated:
            return []
        command = f"./lab dataset {shlex.quote(str(self.directory))} --write-stats"
        notes = []
        for key, rows in statistics.all_rows(self._all_columns(sorted(columns))).items():
            compared = {name: values for name, values in stated.get(key, {}).items() if not names or name in names}
            for text, is_grave in statistics.departures(key, compared, rows):
                text = f"{self.directory / metadata.STATS}: {text}; write the rows' statistics: {command}"
                if is_grave:
                    raise DatasetError(text)
                notes.append(text)
        return notes

    def stated_statistics(self) -> dict[str, dict[str, list]] | None:
        """Return stats.json without images; None if it does not exist."""
        stated = self._read_optional(metadata.STATS)
        for key, of in (stated or {}).items():
            if not isinstance(of, dict):
                problem = f"{self.directory / metadata.STATS}: {key} is a {type(of).__name__}"
                raise DatasetError(f"{problem}; expected an object with {', '.join(statistics.NAMES)}")
        return stated and {key: values for key, values in stated.items() if key not in self.video_keys}

    def computed_statistics(self) -> statistics.Statistics:
        """Return the statistics of the rows as they are now."""
        return statistics.of_episodes(self._all_columns())

    def v3_statistics(self, levels: Mapping[str, tuple[np.ndarray, int]]) -> dict[str, dict[str, np.ndarray]]:
        """Return stats.json of v3.0, of the rows as they are now. levels: of each camera's images, see statistics."""
        stats = {key: statistics.of_rows(rows) for key, rows in statistics.all_rows(self._all_columns()).items()}
        return stats | {key: statistics.of_levels(*of) for key, of in levels.items()}

    def write_statistics(self) -> list[Path]:
        """Write stats.json and, from v2.1 on, the statistics of every episode, from rows and frames; return the paths.

        No other method writes into a data set.
        """
        path, entries = self.directory / metadata.STATS, []
        totals: dict[str, tuple[Any, int]] = {}
        for episode in self.episodes if self.info["codebase_version"] != "v2.0" else ():
            entry = {}
            if episode.length:
                of_column = statistics.of_rows if self.is_v3 else statistics.of_episode
                columns = self.columns(episode.index)
                entry = {key: of_column(values) for key, values in columns.items() if values.dtype != object}
                for key in self.video_keys:
                    if os.path.lexists(self.images_path(episode.index, key)):  # v2.1 may lack a camera's videos
                        counts, images = statistics.levels_of(self.frames(episode.index, key))
                        stats = statistics.of_levels(counts, images)
                        entry[key] = stats if self.is_v3 else statistics.without_quantiles(stats)
                        before = totals.get(key, (0, 0))
                        totals[key] = before[0] + counts, before[1] + images
            entries.append(statistics.plain(entry))
        written = [path]
        if self.is_v3:
            written += v3.write_statistics(self.directory, entries)
        elif entries:
            written.append(self.directory / metadata.EPISODES_STATS)
            indices = (episode.index for episode in self.episodes)
            lines = ({"episode_index": i, "stats": entry} for i, entry in zip(indices, entries, strict=True))
            metadata.write_lines(written[1], lines)
        stats = self.v3_statistics(totals) if self.is_v3 else self.computed_statistics()
        metadata.write_json(path, statistics.plain(stats))
        self._statistics.clear()
        return written

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}

    def _read_optional(self, name: str) -> dict[str, Any] | None:
        path = self.directory / name
        return metadata.read_json(path, self.opener) if os.path.lexists(path) else None


def incomplete(stated: dict[str, dict[str, list]]) -> list[tuple[str, str]]:
    """Return (column, statistic) for each statistic missing in stats.json."""
    return [(key, name) for key, values in stated.items() for name in statistics.NAMES if name not in values]


def _read_info(path: Path, opener: Opener | None) -> dict[str, Any]:
    info = metadata.read_json(path, opener)
    version = info.get("codebase_version")
    if version not in VERSIONS:
        raise DatasetError(f"{path}: codebase_version is {version!r}; expected {', '.join(VERSIONS)}: {LIBRARY}")
    if missing := [name for name in REQUIRED if name not in info]:
        raise DatasetError(f"{path} has no {', '.join(missing)}; LeRobot {version} requires them")
    if not isinstance(info["fps"], (int, float)) or not 0 < info["fps"] <= metadata.MAX_NUMBER:
        raise DatasetError(f"{path}: fps is {info['fps']!r}; expected a number above 0, up to {metadata.MAX_NUMBER}")
    features = info["features"]
    if not isinstance(features, dict) or not all(
        isinstance(feature, dict) and "dtype" in feature for feature in features.values()
    ):
        raise DatasetError(f"{path}: features must give dtype, shape and names of each column and video")
    for key, feature in features.items():
        shape = feature.get("shape") or []
        if not isinstance(shape, list) or not all(
            type(size) is int and 0 <= size <= metadata.MAX_SIZE for size in shape
        ):
            expected = f"integers from 0 to {metadata.MAX_SIZE}"
            raise DatasetError(f"{path}: feature {key} has shape {shape!r:.200}; expected a list of {expected}")
    chunk = info.get("chunks_size")
    if chunk is not None and not (type(chunk) is int and chunk > 0):
        raise DatasetError(f"{path}: chunks_size is {chunk!r}; expected an integer above 0")
    for pattern in ("data_path", "video_path"):
        try:
            if info.get(pattern) is not None:
                fields = metadata.FILE_FIELDS if version == v3.VERSION else metadata.EPISODE_FIELDS
                metadata.check_template(info[pattern], fields)
        except ValueError as error:
            raise DatasetError(f"{path}: {pattern} is {info[pattern]!r:.200}; {error}") from error
    return info
