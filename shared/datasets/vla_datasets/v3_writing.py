"""Write LeRobot v3.0: several episodes per file, with LeRobot's own limits of a file's size.

Episodes are written one by one, as for v2.1; `finish` joins their files without encoding the videos again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from vla_datasets import metadata, statistics, tables, v3, videos
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.writing import PIECES, Writer, tasks_of

MAX_MB = {"data": 100, "video": 200}  # of a file, as LeRobot writes them
EPISODES_PER_FILE = 1000  # in meta/episodes: a few MB of statistics


class V3Writer(Writer):
    """Writes a data set in the layout of v3.0."""

    PIECE = "v3"  # an interrupted writer of v2.1 cannot be resumed as v3.0

    def data_path(self, episode: int) -> Path:
        return self.draft / PIECES / "data" / f"{episode}.parquet"

    def video_path(self, episode: int, key: str) -> Path:
        return self.draft / PIECES / "videos" / key / f"{episode}.mp4"

    def piece_statistics(self, columns: Mapping[str, np.ndarray], frames: Mapping[str, np.ndarray]) -> dict[str, Any]:
        stats = {name: statistics.of_rows(value) for name, value in columns.items()}
        levels = {key: statistics.levels_of(images) for key, images in frames.items()}
        stats |= {key: statistics.of_levels(*of) for key, of in levels.items()}
        stored = {key: {"counts": counts.tolist(), "images": images} for key, (counts, images) in levels.items()}
        return {"stats": statistics.plain(stats), "levels": stored}

    def write_meta(self, pieces: list[dict[str, Any]]) -> None:
        for name in ("data", "videos", "meta"):  # of a call that was interrupted here
            shutil.rmtree(self.draft / name, ignore_errors=True)
        lengths = [piece["length"] for piece in pieces]
        ends = np.cumsum(lengths).tolist()
        rows = [
            {
                "episode_index": index, "tasks": [piece["task"]], "length": piece["length"],
                "dataset_from_index": ends[index] - piece["length"], "dataset_to_index": ends[index],
            }
            for index, piece in enumerate(pieces)
        ]  # fmt: skip
        for file, episodes in _files([self.data_path(index) for index in range(len(rows))], MAX_MB["data"]):
            path, parts = self.draft / v3.DATA_PATH.format(**file), [self.data_path(index) for index in episodes]
            path.parent.mkdir(parents=True, exist_ok=True)
            with tables.pq.ParquetWriter(path, tables.read(parts[0]).schema) as writer:
                for part in parts:  # a row group per episode: one is read without the others
                    writer.write_table(tables.read(part))
            for index in episodes:
                rows[index] |= {f"data/{name}": number for name, number in file.items()}
        for key in self.cameras:
            for file, episodes in _files([self.video_path(index, key) for index in range(len(rows))], MAX_MB["video"]):
                parts = [self.video_path(index, key) for index in episodes]
                videos.concatenate(self.draft / v3.VIDEO_PATH.format(**file, video_key=key), parts, self.fps)
                frames = 0
                for index in episodes:
                    seconds = {
                        "from_timestamp": frames / self.fps,
                        "to_timestamp": (frames + lengths[index]) / self.fps,
                    }
                    rows[index] |= {f"videos/{key}/{name}": value for name, value in (file | seconds).items()}
                    frames += lengths[index]
        write_episodes(self.draft, rows, [piece["stats"] for piece in pieces])
        write_tasks(self.draft, tasks_of(pieces))
        info = {
            **self.info(v3.VERSION, pieces),
            "data_files_size_in_mb": MAX_MB["data"],
            "video_files_size_in_mb": MAX_MB["video"],
            "data_path": v3.DATA_PATH,
            "video_path": v3.VIDEO_PATH if self.cameras else None,
        }
        metadata.write_json(self.draft / metadata.INFO, info)
        levels = {}
        for key in self.cameras:
            parts = [piece["levels"][key] for piece in pieces]
            levels[key] = np.sum([part["counts"] for part in parts], axis=0), sum(part["images"] for part in parts)
        stats = LeRobotDataset(self.draft).v3_statistics(levels)  # which compares files and meta/, too
        metadata.write_json(self.draft / metadata.STATS, statistics.plain(stats))


def _files(paths: list[Path], max_mb: int) -> Iterator[tuple[dict[str, int], list[int]]]:
    """Yield (chunk_index and file_index, its episodes): as many as `max_mb` allows, at least one."""
    number, size = 0, 0
    episodes: list[int] = []
    for index, path in enumerate(paths):
        if episodes and size + path.stat().st_size >= max_mb * 2**20:
            yield file_numbers(number), episodes
            number, episodes, size = number + 1, [], 0
        episodes.append(index)
        size += path.stat().st_size
    yield file_numbers(number), episodes


def file_numbers(number: int) -> dict[str, int]:
    """Return chunk_index and file_index of a set's file."""
    return dict(zip(metadata.FILE_FIELDS, divmod(number, metadata.CHUNK), strict=True))


def write_episodes(directory: Path, rows: list[dict[str, Any]], stats: list[Mapping[str, Any]]) -> None:
    """Write meta/episodes: the rows and the statistics of every episode."""
    for number, start in enumerate(range(0, len(rows), EPISODES_PER_FILE)):
        file, span = file_numbers(number), slice(start, start + EPISODES_PER_FILE)
        table = pa.Table.from_pylist(
            [row | {f"meta/episodes/{name}": at for name, at in file.items()} for row in rows[span]]
        )
        path = directory / v3.EPISODES / v3.FILE_PATH.format(**file)
        path.parent.mkdir(parents=True, exist_ok=True)
        tables.pq.write_table(v3.with_statistics(table, stats[span]), path)


def write_tasks(directory: Path, tasks: Mapping[int, str]) -> None:
    """Write tasks.parquet as pandas writes LeRobot's: the text is the index, in the order of task_index."""
    column = {"field_name": "task_index", "name": "task_index", "pandas_type": "int64", "numpy_type": "int64"}
    index = {"field_name": "task", "name": "task", "pandas_type": "unicode", "numpy_type": "object"}
    pandas = {"index_columns": ["task"], "column_indexes": [], "columns": [column, index], "pandas_version": "2.0.0"}
    table = pa.table({"task_index": pa.array(list(tasks), pa.int64()), "task": list(tasks.values())})
    table = table.replace_schema_metadata({"pandas": json.dumps(pandas)})
    tables.pq.write_table(table, directory / v3.TASKS)
