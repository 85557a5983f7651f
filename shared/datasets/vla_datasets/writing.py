"""LeRobot v2.1 written: parquet, H.264, meta/ with statistics per episode and, as v2.0's readers want them, of all.

Every episode is whole or absent, and the set appears under its name when it is finished: until then it lies beside
that place, and a writer that finds it there goes on with it. Episodes can be written by several processes at once.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vla_datasets import films, metadata, statistics, tables
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset

VERSION = "v2.1"
OWN = {  # columns that every LeRobot set has, and the writer fills
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
PIECES = "pieces"  # a file per finished episode, until the set is finished


@dataclass(frozen=True)
class Place:
    """Where an episode belongs: its number, the rows before it, and its instruction with the number of that.

    file: for layouts with a file per task.
    """

    episode: int
    first_row: int
    task: int
    instruction: str
    file: str = ""


def draft(folder: Path) -> Path:
    """Returns where a set lies until it is finished."""
    return folder.with_name(f".{folder.name}.partial")


def full_features(features: Mapping[str, Mapping[str, Any]], fps: float) -> dict[str, dict[str, Any]]:
    """Returns features as info.json has them: with LeRobot's own columns, and what is known of each film.

    `features` is {name: {"dtype", "shape"[, "names"]}}, dtype "video" for a camera: shape [height, width, 3].
    """
    found: dict[str, dict[str, Any]] = {}
    for name, given in features.items():
        one = {"dtype": given["dtype"], "shape": [int(size) for size in given["shape"]], "names": given.get("names")}
        found[name] = one | (_film(one["shape"], fps) if one["dtype"] == "video" else {})
        if one["dtype"] != "video" and one["dtype"] not in tables.TYPES:
            known = ", ".join(("video", *tables.TYPES))
            raise DatasetError(f"feature {name!r} has dtype {one['dtype']!r}; expected one of {known}")
    return found | {name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in OWN.items()}


def _film(shape: list[int], fps: float) -> dict[str, Any]:
    height, width, channels = shape
    details = {"height": height, "width": width, "channels": channels, "codec": films.CODEC, "pix_fmt": films.PIXELS}
    told = {f"video.{name}": value for name, value in (details | {"is_depth_map": False, "fps": fps}).items()}
    return {"names": ["height", "width", "channels"], "info": told | {"has_audio": False}}


class Writer:
    """Writes a data set into `folder`, which must not exist.

    robot_type, fps: of info.json. features: as `full_features` takes them, without LeRobot's own columns. modality:
    GR00T's modality.json. source: what made the set, kept as meta/source.json. resume: keep the episodes that an
    interrupted writer finished.
    """

    def __init__(
        self,
        folder: str | Path,
        robot_type: str,
        fps: float,
        features: Mapping[str, Mapping[str, Any]],
        modality: Mapping[str, Any] | None = None,
        source: Mapping[str, Any] | None = None,
        resume: bool = False,
    ):
        self.folder = Path(folder).expanduser().absolute()
        if self.folder.exists():
            raise DatasetError(f"{self.folder} is there already; choose another name, or remove it")
        fps = int(fps) if float(fps).is_integer() else float(fps)
        self.robot_type, self.fps, self.features = robot_type, fps, full_features(features, fps)
        self.modality, self.source, self.draft = modality, source, draft(self.folder)
        self._count, self._rows, self._tasks = 0, 0, {}
        if not resume:
            shutil.rmtree(self.draft, ignore_errors=True)

    def add(self, columns: Mapping[str, np.ndarray], videos: Mapping[str, np.ndarray], task: str) -> int:
        """Writes the next episode; returns its number.

        columns: {feature: [T, …]} of every feature that is no film and none of LeRobot's own; videos: {feature: uint8
        [T, H, W, 3]}; task: the instruction. Raises DatasetError where they do not fit the features or each other.
        """
        place = Place(self._count, self._rows, self._tasks.setdefault(task, len(self._tasks)), task)
        self.write(place, columns, videos)
        self._count, self._rows = self._count + 1, self._rows + len(next(iter(columns.values())))
        return place.episode

    def written(self) -> set[int]:
        """Returns the episodes that are whole, those of an earlier, interrupted writer too."""
        return {int(path.stem) for path in (self.draft / PIECES).glob("[0-9]*.json")}

    def write(self, place: Place, columns: Mapping[str, np.ndarray], videos: Mapping[str, np.ndarray]) -> None:
        """Writes one episode at its place, in any order and from any process."""
        length = self._checked(columns, videos)
        values = {name: self._column(name, one) for name, one in columns.items()}
        values |= self._own(place, length)
        where = {"episode_chunk": place.episode // metadata.CHUNK, "episode_index": place.episode}
        for key, pictures in videos.items():
            films.write(self.draft / metadata.VIDEO_PATH.format(**where, video_key=key), pictures, self.fps)
        tables.write(self.draft / metadata.DATA_PATH.format(**where), values)
        stats = {name: statistics.of_episode(one) for name, one in values.items()}
        stats |= {key: statistics.of_pictures(pictures) for key, pictures in videos.items()}
        piece = {"length": length, "task_index": place.task, "task": place.instruction}
        piece["stats"] = statistics.plain(stats)
        metadata.write_json(self.draft / PIECES / f"{place.episode}.json", piece)

    def _column(self, name: str, values: np.ndarray) -> np.ndarray:
        values = np.asarray(values, self.features[name]["dtype"])
        return values.reshape(-1) if self.features[name]["shape"] == [1] else values  # LeRobot keeps one number plain

    def _own(self, place: Place, length: int) -> dict[str, np.ndarray]:
        """Returns LeRobot's own columns."""
        steps = np.arange(length)
        found = {"timestamp": steps / self.fps, "frame_index": steps, "index": place.first_row + steps}
        found |= {"episode_index": np.full(length, place.episode), "task_index": np.full(length, place.task)}
        return {name: found[name].astype(dtype) for name, dtype in OWN.items()}

    def _checked(self, columns: Mapping[str, np.ndarray], videos: Mapping[str, np.ndarray]) -> int:
        given = {**columns, **videos}
        wanted = self.features.keys() - OWN.keys()
        if odd := sorted(given.keys() ^ wanted):
            raise DatasetError(f"the episode's {odd[0]!r} is {'not expected' if odd[0] in given else 'missing'}; "
                               f"features are {', '.join(sorted(wanted))}")  # fmt: skip
        length = len(next(iter(columns.values())))
        for name, values in given.items():
            shape, expected = np.shape(values), tuple(self.features[name]["shape"])
            if shape[1:] != expected and not (expected == (1,) and len(shape) == 1):
                raise DatasetError(f"{name} has the shape {list(shape)}; expected {[length, *expected]}")
            if len(values) != length or not length:
                raise DatasetError(f"{name} has {len(values)} rows; expected {length or 'at least 1'} as the others")
            if name in columns and not np.isfinite(np.asarray(values, np.float64)).all():
                row = int(np.argwhere(~np.isfinite(np.asarray(values, np.float64)))[0][0])
                raise DatasetError(f"{name} holds a NaN or an infinity in row {row}; expected numbers")
        return length

    def finish(self) -> LeRobotDataset:
        """Writes meta/ and gives the set its name; returns it. Raises DatasetError where no episode was written."""
        numbers = sorted(self.written())
        if numbers != list(range(len(numbers))) or not numbers:
            raise DatasetError(f"{self.draft} has episodes {numbers or 'none'}; expected all from 0 on")
        pieces = [metadata.read_json(self.draft / PIECES / f"{number}.json") for number in numbers]
        self._write_meta(pieces)
        metadata.write_json(self.draft / metadata.STATS, statistics.plain(self._all_statistics()))
        shutil.rmtree(self.draft / PIECES)
        self.draft.rename(self.folder)
        return LeRobotDataset(self.folder)

    def _all_statistics(self) -> statistics.Statistics:
        return LeRobotDataset(self.draft).computed_statistics()

    def _write_meta(self, pieces: list[dict[str, Any]]) -> None:
        tasks = dict(sorted((piece["task_index"], piece["task"]) for piece in pieces))
        at = self.draft
        listed = [{"episode_index": i, "tasks": [one["task"]], "length": one["length"]} for i, one in enumerate(pieces)]
        metadata.write_lines(at / metadata.EPISODES, listed)
        metadata.write_lines(at / metadata.TASKS, ({"task_index": i, "task": text} for i, text in tasks.items()))
        stats = ({"episode_index": i, "stats": one["stats"]} for i, one in enumerate(pieces))
        metadata.write_lines(at / metadata.EPISODES_STATS, stats)
        for name, value in ((metadata.MODALITY, self.modality), (metadata.SOURCE, self.source)):
            if value is not None:
                metadata.write_json(at / name, value)
        metadata.write_json(at / metadata.INFO, self._info(pieces, len(tasks)))

    def _info(self, pieces: list[dict[str, Any]], tasks: int) -> dict[str, Any]:
        cameras = sum(one["dtype"] == "video" for one in self.features.values())
        return {
            "codebase_version": VERSION,
            "robot_type": self.robot_type,
            "total_episodes": len(pieces),
            "total_frames": sum(piece["length"] for piece in pieces),
            "total_tasks": tasks,
            "total_videos": cameras * len(pieces),
            "total_chunks": -(-len(pieces) // metadata.CHUNK),
            "chunks_size": metadata.CHUNK,
            "fps": self.fps,
            "splits": {"train": f"0:{len(pieces)}"},
            "data_path": metadata.DATA_PATH,
            "video_path": metadata.VIDEO_PATH if cameras else None,
            "features": self.features,
        }
