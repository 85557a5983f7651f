"""LeRobot's data sets v2.0 and v2.1, with GR00T's modality.json where there is one.

Source: huggingface/lerobot before v3.0 (lerobot/common/datasets), Isaac-GR00T at 4af2b622 (gr00t/data/dataset.py).
"""

from __future__ import annotations

import os
import shlex
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vla_common.regular_files import Opener
from vla_datasets import metadata, statistics, tables, videos
from vla_datasets.dataset import Dataset
from vla_datasets.errors import DatasetError
from vla_datasets.metadata import Episode

VERSIONS = ("v2.0", "v2.1")
REQUIRED = ("codebase_version", "fps", "features", "data_path")
LIBRARY = "LeRobot's own converters go up to v3.0 only; take the set's revision v2.1 from the hub"
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
        self.episodes = metadata.episodes(self.directory, opener)
        self.tasks = metadata.tasks(self.directory, opener)
        self._videos, self._columns = videos.OpenVideos(), OrderedDict()
        self._statistics: dict[bool, statistics.Statistics] = {}  # of all episodes, or without those left out

    def data_path(self, episode_index: int) -> Path:
        """Return the path of an episode's rows."""
        return self._path("data_path", episode_index)

    def video_path(self, episode_index: int, video_key: str) -> Path:
        """Return the path of an episode's video."""
        return self._path("video_path", episode_index, video_key)

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

    def _read_columns(self, episode_index: int, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        path = self.data_path(episode_index)
        return tables.columns(tables.read(path, self.opener, names), path)

    def _all_columns(self, names: Sequence[str] | None = None) -> Iterator[dict[str, np.ndarray]]:
        return (self._read_columns(episode.index, names) for episode in self.episodes)

    def frames(self, episode_index: int, video_key: str, indices: Sequence[int] | None = None) -> np.ndarray:
        kind = self.features.get(video_key, {}).get("dtype")
        if kind == "video":
            return self._videos[self.video_path(episode_index, video_key)].frames(indices)
        if kind != "image":
            raise videos.missing_images(video_key, self.name, self.video_keys)
        path = self.data_path(episode_index)
        table = tables.read(path, self.opener)
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

    def require_current_statistics(self, columns: Iterable[str]) -> list[str]:
        """Compare what `statistics` takes from stats.json with the rows of these columns; return notes.

        Raises DatasetError with the stated and the rows' number, and the command that writes the file again.
        """
        stated = self._complete_statistics()
        if self.left_out or not stated:
            return []
        command = f"./lab dataset {shlex.quote(str(self.directory))} --write-stats"
        notes = []
        for key, rows in statistics.all_rows(self._all_columns(sorted(columns))).items():
            for departure in statistics.departures(key, stated.get(key, {}), rows):
                text = f"{self.directory / metadata.STATS}: {departure}; write the rows' statistics: {command}"
                if departure.grave:
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

    def write_statistics(self) -> list[Path]:
        """Write stats.json from the rows and, in v2.1, episodes_stats.jsonl from rows and frames; return their paths.

        No other method writes into a data set.
        """
        path = self.directory / metadata.STATS
        metadata.write_json(path, statistics.plain(self.computed_statistics()))
        self._statistics.clear()
        if self.info["codebase_version"] != "v2.1":
            return [path]
        lines = [
            {"episode_index": episode.index, "stats": self._episode_statistics(episode)} for episode in self.episodes
        ]
        metadata.write_lines(self.directory / metadata.EPISODES_STATS, lines)
        return [path, self.directory / metadata.EPISODES_STATS]

    def _episode_statistics(self, episode: Episode) -> dict[str, dict[str, list]]:
        """Return an episode's entry of episodes_stats.jsonl, without missing videos."""
        if not episode.length:
            return {}
        columns = {key: values for key, values in self.columns(episode.index).items() if values.dtype != object}
        stats = {key: statistics.of_episode(values) for key, values in columns.items()}
        for key in self.video_keys:
            if os.path.lexists(self.images_path(episode.index, key)):
                stats[key] = statistics.of_images(self.frames(episode.index, key))
        return statistics.plain(stats)

    def _path(self, pattern: str, episode_index: int, video_key: str = "") -> Path:
        chunk = episode_index // (self.info.get("chunks_size") or metadata.CHUNK)
        if self.info.get(pattern) is None:
            raise DatasetError(f"{self.directory / metadata.INFO} has no {pattern}; expected {metadata.VIDEO_PATH}")
        name = metadata.fill_template(self.info[pattern], chunk, episode_index, video_key)
        if name.startswith("/") or ".." in Path(name).parts:
            problem = f"{self.directory / metadata.INFO}: {pattern} gives {name!r:.200}, outside the data set"
            raise DatasetError(f"{problem}; expected a path in it, relative and without '..'")
        return self.directory / name

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
        problem = f"{path}: codebase_version is {version!r}; expected {' or '.join(VERSIONS)}"
        raise DatasetError(f"{problem}. {LIBRARY}" if str(version).startswith("v3") else problem)
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
                metadata.check_template(info[pattern])
        except ValueError as error:
            raise DatasetError(f"{path}: {pattern} is {info[pattern]!r:.200}; {error}") from error
    return info
