"""Write LeRobot v2.1: parquet, H.264, meta/ with statistics per episode and, as v2.0's readers want them, of all.

Every episode is written atomically. Until it is finished, the set is a draft next to its path, which another writer can
resume. Several processes can write episodes at once.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vla_datasets import metadata, statistics, tables, videos
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset

VERSION = "v2.1"
DEFAULT_COLUMNS = {  # in every LeRobot set; filled by the writer
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
PIECES = "pieces"  # a file per finished episode, until the set is finished


@dataclass(frozen=True)
class EpisodeSlot:
    """An episode's position in a set: its number, the rows before it, and its instruction with its task_index.

    file: for layouts with a file per task.
    """

    episode: int
    first_row: int
    task: int
    instruction: str
    file: str = ""


def episode_slots(
    episodes: Iterable[Any], file_of: Callable[[Any], str] = lambda episode: ""
) -> dict[int, EpisodeSlot]:
    """Return the slot of each recorded episode by its `index`: rows do not depend on the order of writing."""
    slots: dict[int, EpisodeSlot] = {}
    tasks: dict[str, int] = {}
    row = 0
    for episode in episodes:
        task = tasks.setdefault(episode.instruction, len(tasks))
        slots[episode.index] = EpisodeSlot(episode.index, row, task, episode.instruction, file_of(episode))
        row += episode.steps
    return slots


def draft(directory: Path) -> Path:
    """Return the path of an unfinished set."""
    return directory.with_name(f".{directory.name}.partial")


class DraftWriter:
    """Base of writers: a draft next to the set's path, which must not exist, with a piece per finished episode.

    source: the set's origin, stored in it. resume: keep the episodes of an interrupted writer.
    """

    PIECE = "json"

    def __init__(self, directory: str | Path, source: Mapping[str, Any] | None, resume: bool):
        self.directory = Path(directory).expanduser().absolute()
        if self.directory.exists():
            raise DatasetError(f"{self.directory} already exists; choose another name, or remove it")
        self.source, self.draft = source, draft(self.directory)
        if not resume:
            shutil.rmtree(self.draft, ignore_errors=True)

    def piece(self, episode: int) -> Path:
        """Return the file that marks an episode as finished."""
        return self.draft / PIECES / f"{episode}.{self.PIECE}"

    def written(self) -> set[int]:
        """Return the finished episodes, including those of an interrupted writer."""
        return {int(path.stem) for path in (self.draft / PIECES).glob(f"[0-9]*.{self.PIECE}")}

    def publish(self) -> None:
        """Give the finished set its name."""
        shutil.rmtree(self.draft / PIECES)
        self.draft.rename(self.directory)


class Writer(DraftWriter):
    """Writes a data set in LeRobot's layout.

    robot_type, fps: of info.json. features: {name: {"dtype", "shape"[, "names"]}} without LeRobot's own columns, dtype
    "video" for a camera: shape [height, width, 3]. modality: GR00T's modality.json.
    """

    def __init__(
        self,
        directory: str | Path,
        robot_type: str,
        fps: float,
        features: Mapping[str, Mapping[str, Any]],
        modality: Mapping[str, Any] | None = None,
        source: Mapping[str, Any] | None = None,
        resume: bool = False,
    ):
        super().__init__(directory, source, resume)
        fps = int(fps) if float(fps).is_integer() else float(fps)
        self.robot_type, self.fps, self.modality = robot_type, fps, modality
        self._count, self._rows, self._tasks = 0, 0, {}
        self.features: dict[str, dict[str, Any]] = {}  # of info.json
        for name, feature in features.items():
            dtype, shape = feature["dtype"], [int(size) for size in feature["shape"]]
            self.features[name] = {"dtype": dtype, "shape": shape, "names": feature.get("names")}
            if dtype == "video":
                info = dict(zip(("height", "width", "channels"), shape, strict=True))
                info |= {"codec": videos.CODEC, "pix_fmt": videos.PIXELS, "is_depth_map": False, "fps": fps}
                info = {f"video.{key}": value for key, value in info.items()} | {"has_audio": False}
                self.features[name] |= {"names": ["height", "width", "channels"], "info": info}
            elif dtype not in tables.TYPES:
                dtypes = ", ".join(("video", *tables.TYPES))
                raise DatasetError(f"feature {name!r} has dtype {dtype!r}; expected one of {dtypes}")
        self.features |= {name: {"dtype": of, "shape": [1], "names": None} for name, of in DEFAULT_COLUMNS.items()}

    def add(self, columns: Mapping[str, np.ndarray], frames: Mapping[str, np.ndarray], task: str) -> int:
        """Write the next episode; return its number.

        columns: {feature: [T, …]} of every feature that is neither a video nor LeRobot's own; frames: {feature: uint8
        [T, H, W, 3]}; task: the instruction. Raises DatasetError if they do not match the features or each other.
        """
        position = EpisodeSlot(self._count, self._rows, self._tasks.setdefault(task, len(self._tasks)), task)
        self.write(position, columns, frames)
        self._count, self._rows = self._count + 1, self._rows + len(next(iter(columns.values())))
        return position.episode

    def write(self, position: EpisodeSlot, columns: Mapping[str, np.ndarray], frames: Mapping[str, np.ndarray]) -> None:
        """Write one episode, in any order and from any process."""
        length = self._check(columns, frames)
        values = {}
        for name, rows in columns.items():
            feature = self.features[name]
            rows = np.asarray(rows, feature["dtype"])
            values[name] = rows.reshape(-1) if feature["shape"] == [1] else rows  # LeRobot stores one number plain
        steps = np.arange(length)
        defaults = {"timestamp": steps / self.fps, "frame_index": steps, "index": position.first_row + steps}
        defaults |= {"episode_index": np.full(length, position.episode), "task_index": np.full(length, position.task)}
        values |= {name: defaults[name].astype(dtype) for name, dtype in DEFAULT_COLUMNS.items()}
        for key, images in frames.items():
            videos.write(self.video_path(position.episode, key), images, self.fps)
        tables.write(self.data_path(position.episode), values)
        piece = {"length": length, "task_index": position.task, "task": position.instruction}
        metadata.write_json(self.piece(position.episode), piece | self.piece_statistics(values, frames))

    def data_path(self, episode: int) -> Path:
        """Return the file of an episode's rows in the draft."""
        return self.draft / metadata.DATA_PATH.format(episode_chunk=episode // metadata.CHUNK, episode_index=episode)

    def video_path(self, episode: int, key: str) -> Path:
        """Return the file of an episode's video in the draft."""
        chunk = episode // metadata.CHUNK
        return self.draft / metadata.VIDEO_PATH.format(episode_chunk=chunk, episode_index=episode, video_key=key)

    def piece_statistics(self, columns: Mapping[str, np.ndarray], frames: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return what an episode's piece stores for the statistics."""
        stats = {name: statistics.of_episode(value) for name, value in columns.items()}
        stats |= {key: statistics.of_images(images) for key, images in frames.items()}
        return {"stats": statistics.plain(stats)}

    def _check(self, columns: Mapping[str, np.ndarray], frames: Mapping[str, np.ndarray]) -> int:
        arrays = {**columns, **frames}
        names = self.features.keys() - DEFAULT_COLUMNS.keys()
        if odd := sorted(arrays.keys() ^ names):
            raise DatasetError(f"the episode's {odd[0]!r} is {'not expected' if odd[0] in arrays else 'missing'}; "
                               f"features are {', '.join(sorted(names))}")  # fmt: skip
        length = len(next(iter(columns.values())))
        for name, values in arrays.items():
            shape, expected = np.shape(values), tuple(self.features[name]["shape"])
            if shape[1:] != expected and not (expected == (1,) and len(shape) == 1):
                raise DatasetError(f"{name} has the shape {list(shape)}; expected {[length, *expected]}")
            if len(values) != length or not length:
                raise DatasetError(f"{name} has {len(values)} rows; expected {length or 'at least 1'}")
            if name in columns and not np.isfinite(np.asarray(values, np.float64)).all():
                row = int(np.argwhere(~np.isfinite(np.asarray(values, np.float64)))[0][0])
                raise DatasetError(f"{name} contains NaN or infinity in row {row}; expected finite numbers")
        return length

    def finish(self) -> LeRobotDataset:
        """Write meta/, move the set to its path and open it. Raises DatasetError if no episode was written."""
        numbers = sorted(self.written())
        if numbers != list(range(len(numbers))) or not numbers:
            raise DatasetError(f"{self.draft} has episodes {numbers or 'none'}; expected all from 0")
        self.write_meta([metadata.read_json(self.piece(number)) for number in numbers])
        for name, value in ((metadata.MODALITY, self.modality), (metadata.SOURCE, self.source)):
            if value is not None:
                metadata.write_json(self.draft / name, value)
        self.publish()
        return LeRobotDataset(self.directory)

    def write_meta(self, pieces: list[dict[str, Any]]) -> None:
        """Write the files of meta/ that describe the episodes."""
        at, cameras = self.draft, len(self.cameras)
        lines = [
            {"episode_index": i, "tasks": [piece["task"]], "length": piece["length"]} for i, piece in enumerate(pieces)
        ]
        metadata.write_lines(at / metadata.EPISODES, lines)
        tasks = tasks_of(pieces)
        metadata.write_lines(at / metadata.TASKS, ({"task_index": i, "task": text} for i, text in tasks.items()))
        stats = ({"episode_index": i, "stats": piece["stats"]} for i, piece in enumerate(pieces))
        metadata.write_lines(at / metadata.EPISODES_STATS, stats)
        info = {
            **self.info(VERSION, pieces),
            "total_videos": cameras * len(pieces),
            "total_chunks": -(-len(pieces) // metadata.CHUNK),
            "data_path": metadata.DATA_PATH,
            "video_path": metadata.VIDEO_PATH if cameras else None,
        }
        metadata.write_json(at / metadata.INFO, info)
        metadata.write_json(at / metadata.STATS, statistics.plain(LeRobotDataset(at).computed_statistics()))

    @property
    def cameras(self) -> list[str]:
        """The features that are videos."""
        return [key for key, feature in self.features.items() if feature["dtype"] == "video"]

    def info(self, version: str, pieces: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the fields of info.json that every version has."""
        return {
            "codebase_version": version,
            "robot_type": self.robot_type,
            "total_episodes": len(pieces),
            "total_frames": sum(piece["length"] for piece in pieces),
            "total_tasks": len(tasks_of(pieces)),
            "chunks_size": metadata.CHUNK,
            "fps": self.fps,
            "splits": {"train": f"0:{len(pieces)}"},
            "features": self.features,
        }


def tasks_of(pieces: list[dict[str, Any]]) -> dict[int, str]:
    """Return the instructions of the episodes by task_index."""
    return dict(sorted((piece["task_index"], piece["task"]) for piece in pieces))
