"""LeRobot's data sets v2.0 and v2.1, with GR00T's modality.json where there is one.

Source: huggingface/lerobot before v3.0 (lerobot/common/datasets), Isaac-GR00T at 4af2b622 (gr00t/data/dataset.py).
"""

from __future__ import annotations

import os
import shlex
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vla_common.regular_files import Opener
from vla_datasets import films, metadata, statistics, tables
from vla_datasets.errors import DatasetError
from vla_datasets.metadata import Episode

VERSIONS = ("v2.0", "v2.1")
NEEDED = ("codebase_version", "fps", "features", "data_path")
LIBRARY = "LeRobot's own converters go up to v3.0 and not back: take the set's revision v2.1 from the hub"
KEPT = 64  # episodes whose columns stay in memory


class LeRobotDataset:
    """A data set in a folder. Reading it never writes into it.

    info      info.json as it is: codebase_version, robot_type, fps, chunks_size, total_…, features
    modality  GR00T's modality.json, None where there is none
    source    what the lab knows of a set that it made itself: meta/source.json, else None
    left_out  how many episodes were taken out of `episodes`

    opener: how files of numbers and of meta/ are opened; open()'s own by default. It decides whether links are
    followed: paths of a data set are judged by their names alone.
    """

    left_out = 0

    def __init__(self, folder: str | Path, opener: Opener | None = None):
        self.folder, self.opener = Path(folder).expanduser().absolute(), opener
        self.info = _info(self.folder, opener)
        self.modality = self._optional(metadata.MODALITY)
        for kind in ("state", "action", "video", "annotation"):
            parts = (self.modality or {}).get(kind) or {}
            if not isinstance(parts, dict) or not all(isinstance(one or {}, dict) for one in parts.values()):
                what = f"{self.folder / metadata.MODALITY}: {kind} is {parts!r:.200}"
                raise DatasetError(f"{what}; expected an object of parts, each an object")
        self.source = self._optional(metadata.SOURCE)
        self.episodes: list[Episode] = metadata.episodes(self.folder, opener)
        self.tasks: dict[int, str] = metadata.tasks(self.folder, opener)
        self._films, self._columns = films.Films(), OrderedDict()

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def fps(self) -> float:
        return float(self.info["fps"])

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        return self.info["features"]

    @property
    def video_keys(self) -> tuple[str, ...]:
        """The features that are pictures, whether they lie in films or in the rows."""
        return tuple(key for key, one in self.features.items() if one["dtype"] in ("video", "image"))

    @property
    def column_keys(self) -> tuple[str, ...]:
        """The features that are numbers."""
        return tuple(key for key in self.features if key not in self.video_keys)

    def __len__(self) -> int:
        return sum(episode.length for episode in self.episodes)

    def data_path(self, episode_index: int) -> Path:
        """Returns where an episode's rows lie."""
        return self._path("data_path", episode_index)

    def video_path(self, episode_index: int, video_key: str) -> Path:
        """Returns where an episode's film lies."""
        return self._path("video_path", episode_index, video_key)

    def columns(self, episode_index: int) -> dict[str, np.ndarray]:
        """Returns an array [T, …] for each column of an episode. They are kept, and not to be written to."""
        if episode_index not in self._columns:
            path = self.data_path(episode_index)
            self._columns[episode_index] = tables.columns(tables.read(path, self.opener), path)
            if len(self._columns) > KEPT:
                self._columns.popitem(last=False)
        self._columns.move_to_end(episode_index)
        return self._columns[episode_index]

    def frames(self, episode_index: int, video_key: str, indices: Sequence[int] | None = None) -> np.ndarray:
        """Returns uint8 [n, H, W, 3], top row first: those frames of an episode, all by default."""
        feature = self.features.get(video_key, {})
        if feature.get("dtype") == "image":
            return self._images(episode_index, video_key, indices)
        if feature.get("dtype") != "video":
            raise films.none_called(video_key, self.name, self.video_keys)
        return self._films[self.video_path(episode_index, video_key)].frames(indices)

    def pictures_path(self, episode_index: int, video_key: str) -> Path:
        """Returns the file that an episode's pictures lie in: a film, or the rows themselves."""
        is_film = self.features[video_key]["dtype"] == "video"
        return self.video_path(episode_index, video_key) if is_film else self.data_path(episode_index)

    def film(self, episode_index: int, video_key: str) -> films.Film:
        """Returns the film of a feature "video" that is none of "image"."""
        return self._films[self.video_path(episode_index, video_key)]

    def statistics(self) -> statistics.Statistics:
        """Returns {feature: {min, max, mean, std, q01, q99}}, float64 [n]: stats.json's, else the rows'.

        Where episodes are left out, it is of the others' rows.
        """
        return self._of_the_rest if self.left_out else self._statistics

    @cached_property
    def _of_the_rest(self) -> statistics.Statistics:
        return self.computed_statistics()

    @cached_property
    def _statistics(self) -> statistics.Statistics:
        if self._uses_stated:
            stated, names = self.stated_statistics(), statistics.NAMES
            return {key: {name: np.asarray(of[name], np.float64) for name in names} for key, of in stated.items()}
        return self.computed_statistics()

    @property
    def _uses_stated(self) -> bool:
        stated = self.stated_statistics() or {}
        return bool(stated) and not set(self.column_keys) - stated.keys() and not incomplete(stated)

    def require_current_statistics(self, columns: Iterable[str]) -> list[str]:
        """Compare what `statistics` takes from stats.json with the rows of these columns; returns notes.

        Raises DatasetError with the stated and the rows' number, and the command that writes the file again.
        """
        if self.left_out or not self._uses_stated:
            return []
        columns = sorted(columns)
        paths = (self.data_path(episode.index) for episode in self.episodes)
        read = (tables.columns(tables.read(path, self.opener, columns), path) for path in paths)
        stated = self.stated_statistics()
        command = f"./lab dataset {shlex.quote(str(self.folder))} --write-stats"
        notes = []
        for key, rows in statistics.all_rows(read).items():
            for one in statistics.departures(key, stated.get(key, {}), rows):
                text = f"{self.folder / metadata.STATS}: {one}; write the rows' statistics: {command}"
                if one.grave:
                    raise DatasetError(text)
                notes.append(text)
        return notes

    def stated_statistics(self) -> dict[str, dict[str, list]] | None:
        """Returns stats.json as it is, without pictures; None where there is none."""
        found = self._optional(metadata.STATS)
        for key, of in (found or {}).items():
            if not isinstance(of, dict):
                what = f"{self.folder / metadata.STATS}: {key} is a {type(of).__name__}"
                raise DatasetError(f"{what}; expected an object with {', '.join(statistics.NAMES)}")
        return found and {key: one for key, one in found.items() if key not in self.video_keys}

    def computed_statistics(self) -> statistics.Statistics:
        """Returns the statistics of the rows as they are now."""
        read = (self.data_path(episode.index) for episode in self.episodes)
        return statistics.of_episodes(tables.columns(tables.read(path, self.opener), path) for path in read)

    def write_statistics(self) -> list[Path]:
        """Write stats.json from the rows and, in v2.1, episodes_stats.jsonl from rows and frames; return their paths.

        Nothing else writes into a data set.
        """
        path = self.folder / metadata.STATS
        metadata.write_json(path, statistics.plain(self.computed_statistics()))
        self.__dict__.pop("_statistics", None)
        if self.info["codebase_version"] != "v2.1":
            return [path]
        stats = [{"episode_index": one.index, "stats": self._episode_statistics(one)} for one in self.episodes]
        metadata.write_lines(self.folder / metadata.EPISODES_STATS, stats)
        return [path, self.folder / metadata.EPISODES_STATS]

    def _episode_statistics(self, episode: Episode) -> dict[str, dict[str, list]]:
        """Return what episodes_stats.jsonl holds of an episode, without videos that nobody made."""
        if not episode.length:
            return {}
        columns = {key: values for key, values in self.columns(episode.index).items() if values.dtype != object}
        stats = {key: statistics.of_episode(values) for key, values in columns.items()}
        for key in self.video_keys:
            if os.path.lexists(self.pictures_path(episode.index, key)):
                stats[key] = statistics.of_pictures(self.frames(episode.index, key))
        return statistics.plain(stats)

    def _images(self, episode_index: int, key: str, indices: Sequence[int] | None) -> np.ndarray:
        path = self.data_path(episode_index)
        table = tables.read(path, self.opener)
        if key not in table.column_names:
            raise DatasetError(f"{path} has no column {key}; info.json promises pictures there")
        rows = table.column(key).to_pylist()
        wanted = range(len(rows)) if indices is None else [int(index) for index in indices]
        for row in wanted:
            if not (isinstance(rows[row], dict) and isinstance(rows[row].get("bytes"), bytes)):
                stored = f"{path}: {key}, row {row} is {rows[row]!r:.200}"
                raise DatasetError(f"{stored}; expected a PNG or JPEG file in its bytes, not the path of one")
        return np.stack([films.picture(rows[row]["bytes"], f"{key}, row {row} of {path}") for row in wanted])

    def _path(self, pattern: str, episode_index: int, video_key: str = "") -> Path:
        chunk = episode_index // (self.info.get("chunks_size") or metadata.CHUNK)
        if self.info.get(pattern) is None:
            raise DatasetError(f"{self.folder / metadata.INFO} has no {pattern}; expected {metadata.VIDEO_PATH}")
        name = metadata.fill_template(self.info[pattern], chunk, episode_index, video_key)
        if name.startswith("/") or ".." in Path(name).parts:
            what = f"{self.folder / metadata.INFO}: {pattern} gives {name!r:.200}, out of the data set"
            raise DatasetError(f"{what}; expected a path in it, relative and without '..'")
        return self.folder / name

    def _optional(self, name: str) -> dict[str, Any] | None:
        path = self.folder / name
        return metadata.read_json(path, self.opener) if os.path.lexists(path) else None


def incomplete(stated: dict[str, dict[str, list]]) -> list[tuple[str, str]]:
    """Returns (column, statistic) for each one that stats.json lacks."""
    return [(key, name) for key, one in stated.items() for name in statistics.NAMES if name not in one]


def _info(folder: Path, opener: Opener | None) -> dict[str, Any]:
    path = folder / metadata.INFO
    info = metadata.read_json(path, opener)
    version = info.get("codebase_version")
    if version not in VERSIONS:
        what = f"{path}: codebase_version is {version!r}; expected {' or '.join(VERSIONS)}"
        raise DatasetError(f"{what}. {LIBRARY}" if str(version).startswith("v3") else what)
    missing = [name for name in NEEDED if name not in info]
    if missing:
        raise DatasetError(f"{path} lacks {', '.join(missing)}; expected what LeRobot {version} writes there")
    if not isinstance(info["fps"], (int, float)) or not 0 < info["fps"] <= metadata.MAX_NUMBER:
        raise DatasetError(f"{path}: fps is {info['fps']!r}; expected a number above 0, up to {metadata.MAX_NUMBER}")
    features = info["features"]
    if not isinstance(features, dict) or not all(isinstance(one, dict) and "dtype" in one for one in features.values()):
        raise DatasetError(f"{path}: features must give dtype, shape and names of each column and film")
    for key, feature in features.items():
        shape = feature.get("shape") or []
        if not isinstance(shape, list) or not all(type(one) is int and 0 <= one <= metadata.MAX_SIZE for one in shape):
            expected = f"whole numbers from 0 to {metadata.MAX_SIZE}"
            raise DatasetError(f"{path}: feature {key} has shape {shape!r:.200}; expected a list of {expected}")
    chunk = info.get("chunks_size")
    if chunk is not None and not (type(chunk) is int and chunk > 0):
        raise DatasetError(f"{path}: chunks_size is {chunk!r}; expected a whole number above 0")
    for pattern in ("data_path", "video_path"):
        try:
            if info.get(pattern) is not None:
                metadata.check_template(info[pattern])
        except ValueError as error:
            raise DatasetError(f"{path}: {pattern} is {info[pattern]!r:.200}; {error}") from error
    return info
