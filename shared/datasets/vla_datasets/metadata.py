"""The files of meta/: JSON and lines of JSON, read with the file's name in every error, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_datasets.errors import DatasetError

INFO, MODALITY, STATS, SOURCE = "meta/info.json", "meta/modality.json", "meta/stats.json", "meta/source.json"
EPISODES, TASKS, EPISODES_STATS = "meta/episodes.jsonl", "meta/tasks.jsonl", "meta/episodes_stats.jsonl"
DATA_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
VIDEO_PATH = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
CHUNK = 1000  # episodes in a folder
Opener = Callable[[str, int], int]  # as open() takes one: who must follow no link brings one


@dataclass(frozen=True)
class Episode:
    """One episode as episodes.jsonl has it; `tasks` are its instructions, the first one what was asked for."""

    index: int
    tasks: tuple[str, ...]
    length: int


def features(films: Iterable[str], size: int, numbers: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
    """Returns the features of info.json: films `size` pixels square, and what the numbers of each column are called."""
    found: dict[str, dict[str, Any]] = {film: {"dtype": "video", "shape": [size, size, 3]} for film in films}
    for name, names in numbers.items():
        found[name] = {"dtype": "float32", "shape": [len(names)], "names": {"motors": list(names)}}
    return found


def read_json(path: Path, opener: Opener | None = None) -> dict[str, Any]:
    """Returns a JSON object. Raises DatasetError naming the file."""
    try:
        value = json.loads(_text(path, opener))
    except FileNotFoundError as error:
        raise DatasetError(f"{path} is missing; expected a data set in LeRobot's layout") from error
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise DatasetError(f"{path} holds a {type(value).__name__}; expected a JSON object")
    return value


def read_lines(path: Path, opener: Opener | None = None) -> list[tuple[int, dict[str, Any]]]:
    """Returns (row from 1, object) for each line of JSON that is not blank. Raises DatasetError naming file and row."""
    try:
        lines = _text(path, opener).splitlines()
    except FileNotFoundError as error:
        raise DatasetError(f"{path} is missing; expected a line of JSON for each entry") from error
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path} cannot be read: {error}") from error
    found = []
    for row, line in enumerate(lines, 1):
        if line.strip():
            found.append((row, _line(path, row, line)))
    return found


def _text(path: Path, opener: Opener | None) -> str:
    with open(path, encoding="utf-8", opener=opener) as file:
        return file.read()


def _line(path: Path, row: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise DatasetError(f"{path}, row {row}: no JSON ({error})") from error
    if not isinstance(value, dict):
        raise DatasetError(f"{path}, row {row}: a {type(value).__name__}; expected a JSON object")
    return value


def episodes(folder: Path, opener: Opener | None = None) -> list[Episode]:
    """Returns what episodes.jsonl lists, in its order."""
    return [_episode(folder / EPISODES, row, one) for row, one in read_lines(folder / EPISODES, opener)]


def _episode(path: Path, row: int, one: dict[str, Any]) -> Episode:
    index, length, tasks = one.get("episode_index"), one.get("length"), one.get("tasks")
    if type(index) is not int or type(length) is not int or index < 0 or length < 0:
        raise DatasetError(f"{path}, row {row}: episode_index {index!r}, length {length!r}; expected whole numbers")
    if not isinstance(tasks, list) or not all(isinstance(task, str) for task in tasks):
        raise DatasetError(f"{path}, row {row}: tasks is {tasks!r}; expected a list of instructions")
    return Episode(index, tuple(tasks), length)


def tasks(folder: Path, opener: Opener | None = None) -> dict[int, str]:
    """Returns what tasks.jsonl lists: task_index -> instruction."""
    path, found = folder / TASKS, {}
    for row, one in read_lines(path, opener):
        if type(one.get("task_index")) is not int or not isinstance(one.get("task"), str):
            raise DatasetError(f"{path}, row {row}: {one}; expected task_index, a whole number, and task, a text")
        found[one["task_index"]] = one["task"]
    return found


def write_json(path: Path, value: object) -> None:
    """Writes a value as JSON; NaN is refused, since no other program reads it."""
    _write(path, json.dumps(value, indent=4, ensure_ascii=False, allow_nan=False) + "\n")


def write_lines(path: Path, values: Iterable[object]) -> None:
    """Writes a line of JSON for each value."""
    _write(path, "".join(json.dumps(one, ensure_ascii=False, allow_nan=False) + "\n" for one in values))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
