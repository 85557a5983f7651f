"""The files of meta/: JSON and lines of JSON, errors name the file, and writes are atomic."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_common.regular_files import Opener, UnsafeFileError, open_regular
from vla_common.unreadable import explain
from vla_datasets.errors import DatasetError

INFO, MODALITY, STATS, SOURCE = "meta/info.json", "meta/modality.json", "meta/stats.json", "meta/source.json"
EPISODES, TASKS, EPISODES_STATS = "meta/episodes.jsonl", "meta/tasks.jsonl", "meta/episodes_stats.jsonl"
DATA_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
VIDEO_PATH = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
CHUNK = 1000  # episodes in a directory
STATE, ACTION = "observation.state", "action"  # column names of LeRobot sets

# Limits of a data set's files: several times what the largest published sets need.
MAX_BYTES = {".json": 2**26, ".jsonl": 2**30, ".parquet": 2**32}
MAX_LINES = 2_000_000  # of a file of lines
MAX_LINE_BYTES = 2**24
MAX_NUMBER = 10**9  # of an episode, a task, a step
MAX_ROWS = 10**7  # of an episode
MAX_VALUES = 2**31  # of an episode's rows, all columns together
MAX_ARRAY_BYTES = 2**32  # of an array in an HDF5 file
MAX_TEMPLATE = 1000  # characters of data_path and video_path
MAX_SIZE = 10**6  # of each dimension of a feature's shape

# The numbers that a path template may hold, padded with zeros to a width of one digit.
EPISODE_FIELDS, FILE_FIELDS = ("episode_chunk", "episode_index"), ("chunk_index", "file_index")
_PATH_FIELD = re.compile(
    rf"\{{(?:(?P<number>{'|'.join(EPISODE_FIELDS + FILE_FIELDS)})(?::0(?P<width>[1-9])d)?|video_key)\}}"
)


@dataclass(frozen=True)
class Episode:
    """An episode of meta/; `tasks` are its instructions, the executed one first."""

    index: int
    tasks: tuple[str, ...]
    length: int


def features(videos: Iterable[str], size: int, numbers: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
    """Return the features of info.json: videos of `size` pixels square, and columns with the names of their numbers."""
    described: dict[str, dict[str, Any]] = {video: {"dtype": "video", "shape": [size, size, 3]} for video in videos}
    for name, names in numbers.items():
        described[name] = {"dtype": "float32", "shape": [len(names)], "names": {"motors": list(names)}}
    return described


def read_json(path: Path, opener: Opener | None = None) -> dict[str, Any]:
    """Return a JSON object. Raises DatasetError naming the file."""
    try:
        with open_regular(path, MAX_BYTES[".json"], opener) as file:
            value = _parse(file.read(MAX_BYTES[".json"]))
    except FileNotFoundError as error:
        raise missing(path, "a data set in LeRobot's layout") from error
    except OSError as error:
        raise unreadable(path, error, "JSON", opener) from error
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path} cannot be read as JSON: {_reason(path, error, opener)}") from error
    if not isinstance(value, dict):
        raise DatasetError(f"{path} contains a {type(value).__name__}; expected a JSON object")
    return value


def read_lines(path: Path, opener: Opener | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (row from 1, object) for each line of JSON that is not blank; only one line is in memory.

    Raises DatasetError naming file and row.
    """
    try:
        with open_regular(path, MAX_BYTES[path.suffix], opener) as file:
            row = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                row += 1
                if len(line) > MAX_LINE_BYTES or row > MAX_LINES:
                    limits = f"expected at most {MAX_LINES:,} lines of {MAX_LINE_BYTES:,} bytes"
                    raise DatasetError(f"{path}, row {row}: {limits}; check where the file comes from")
                if not line.strip():
                    continue
                try:
                    value = _parse(line)
                except (ValueError, RecursionError) as error:
                    reason = _reason(path, error, opener) if row == 1 else str(error)
                    raise DatasetError(f"{path}, row {row}: not JSON: {reason}") from error
                if not isinstance(value, dict):
                    raise DatasetError(f"{path}, row {row}: a {type(value).__name__}; expected a JSON object")
                yield row, value
    except FileNotFoundError as error:
        raise missing(path, "a line of JSON for each entry") from error
    except OSError as error:
        raise unreadable(path, error, "lines of JSON", opener) from error


def missing(path: Path, expected: str) -> DatasetError:
    """Return the error for a missing file, or a link to one."""
    problem = f"is a link to {os.readlink(path)}, which is missing" if path.is_symlink() else "is missing"
    return DatasetError(f"{path} {problem}; expected {expected}")


def unreadable(path: Path, error: Exception, kind: str, opener: Opener | None = None) -> DatasetError:
    """Return the error for an existing file that is not `kind`, with its cause and the next step.

    With a caller's own opener, the file must not be opened otherwise: the reason is the error's text.
    """
    is_explained = opener is not None or isinstance(error, UnsafeFileError)
    reason = str(error).partition("\n")[0] if is_explained else explain(path, error)
    return DatasetError(f"{path} cannot be read as {kind}: {reason}")


def _reason(path: Path, error: Exception, opener: Opener | None) -> str:
    """Return why a text is not JSON. A wrong first byte suggests another kind of file, a later one a typing error."""
    is_other_kind = isinstance(error, UnicodeDecodeError) or getattr(error, "pos", None) == 0
    return explain(path, error) if is_other_kind and opener is None else str(error)


def files_below(directory: Path) -> Iterator[Path]:
    """Yield every file below a directory; a linked directory is entered, and none twice."""
    seen = set()
    for name, directories, files in os.walk(directory, followlinks=True):
        status = os.stat(name)
        if (status.st_dev, status.st_ino) in seen:
            directories.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        yield from (Path(name, file) for file in files)


def _parse(text: bytes) -> Any:
    """Return a JSON value. Raises ValueError for text that is not JSON, and for half a character such as \\ud800."""
    value = json.loads(text.decode("utf-8-sig"))
    if re.search(rb"\\u[dD][89a-fA-F]", text):
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError("a text contains an unpaired surrogate (\\ud800 to \\udfff); remove it") from error
    return value


def episodes(directory: Path, opener: Opener | None = None) -> list[Episode]:
    """Return the episodes of episodes.jsonl, in its order."""
    path, listed = directory / EPISODES, []
    for row, line in read_lines(path, opener):
        index, length, tasks = line.get("episode_index"), line.get("length"), line.get("tasks")
        if not all(type(number) is int and 0 <= number <= MAX_NUMBER for number in (index, length)):
            numbers = f"integers from 0 to {MAX_NUMBER:,}"
            raise DatasetError(f"{path}, row {row}: episode_index {index!r}, length {length!r}; expected {numbers}")
        if not isinstance(tasks, list) or not all(isinstance(task, str) for task in tasks):
            raise DatasetError(f"{path}, row {row}: tasks is {tasks!r}; expected a list of instructions")
        listed.append(Episode(index, tuple(tasks), length))
    return listed


def tasks(directory: Path, opener: Opener | None = None) -> dict[int, str]:
    """Return the instructions of tasks.jsonl by task_index."""
    path, instructions = directory / TASKS, {}
    for row, line in read_lines(path, opener):
        if type(line.get("task_index")) is not int or not isinstance(line.get("task"), str):
            raise DatasetError(f"{path}, row {row}: {line}; expected task_index, an integer, and task, a text")
        instructions[line["task_index"]] = line["task"]
    return instructions


def check_template(template: object, fields: Sequence[str]) -> None:
    """Raise ValueError for a path template of info.json with anything but these fields and {video_key} in braces."""
    text = template if isinstance(template, str) and len(template) <= MAX_TEMPLATE else "{}"
    are_expected = all(field["number"] in (None, *fields) for field in _PATH_FIELD.finditer(text))
    if not are_expected or re.search(r"[{}]", _PATH_FIELD.sub("", text)):
        listed = f"{{{fields[0]}}}, {{{fields[1]}}} and {{video_key}}"
        raise ValueError(f"the only fields are {listed}, numbers padded to one digit's width such as :06d")


def fill_template(template: str, numbers: Mapping[str, int], video_key: str = "") -> str:
    """Return the path that a checked template gives. Text of a data set never reaches str.format."""
    return _PATH_FIELD.sub(
        lambda field: f"{numbers[field['number']]:0{field['width'] or 1}d}" if field["number"] else video_key, template
    )


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write, which replaces `path` at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, value: object) -> None:
    """Write a value as JSON. Raises ValueError for NaN, which other programs cannot read."""
    text = json.dumps(value, indent=4, ensure_ascii=False, allow_nan=False) + "\n"
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_lines(path: Path, values: Iterable[object]) -> None:
    """Write a line of JSON for each value."""
    text = "".join(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n" for value in values)
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")
