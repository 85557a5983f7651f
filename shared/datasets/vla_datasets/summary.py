"""Text output of `./lab dataset NAME` and `./lab data MODEL`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vla_common.counts import plural
from vla_common.durations import format_duration
from vla_common.entrypoint import single_line
from vla_datasets import metadata
from vla_datasets.checks import DatasetFault
from vla_datasets.dataset import Dataset

MAX_FAULTS = 40  # printed; the rest are counted


def describe_line(dataset: Dataset) -> str:
    """Return one line: layout, robot, episodes, steps, tasks, size."""
    steps = len(dataset)
    took = format_duration(steps / dataset.fps)
    robot = dataset.info.get("robot_type") or "unknown robot"
    return single_line(
        f"{dataset.name}: {layout(dataset)}, {robot}, {plural(len(dataset.episodes), 'episode')}, {steps:,} steps at "
        f"{dataset.fps:g} fps ({took}), {plural(len(dataset.tasks), 'task')}, {size(dataset.directory) / 1e6:,.0f} MB"
    )


def layout(dataset: Dataset) -> str:
    """Return the layout's name."""
    version = str(dataset.info["codebase_version"])
    return f"LeRobot {version}" if version.startswith("v") else version


def size(directory: Path) -> int:
    """Return the size of a data set in bytes."""
    paths = metadata.files_below(directory) if directory.is_dir() else [directory]
    return sum(path.stat().st_size for path in paths if path.is_file())


def names_of(dataset: Dataset, column: str) -> list[str]:
    """Return a name for each number of a column: from info.json if complete, else their indices."""
    feature = dataset.features.get(column, {})
    names = feature.get("names")
    names = next(iter(names.values()), None) if isinstance(names, dict) else names
    width = int(feature["shape"][-1]) if feature.get("shape") else 1
    fits = isinstance(names, (list, tuple)) and len(names) == width
    return [str(name) for name in names] if fits else [str(index) for index in range(width)] if width > 1 else [""]


def schema(dataset: Dataset) -> list[tuple[str, str, str]]:
    """Return (feature, type and shape, names) for each feature."""
    rows = []
    for key, feature in dataset.features.items():
        shape = " × ".join(map(str, feature.get("shape") or ()))
        names = [] if key in dataset.video_keys else names_of(dataset, key)
        rows.append((key, f"{feature['dtype']} [{shape}]", ", ".join(names) if any(map(str.isalpha, names)) else ""))
    return rows


def tasks(dataset: Dataset) -> list[tuple[int, str, int, int]]:
    """Return (number, instruction, episodes, steps) for each task."""
    episodes, steps = Counter(), Counter()
    for episode in dataset.episodes:
        for text in set(episode.tasks):
            episodes[text] += 1
            steps[text] += episode.length
    return [(index, text, episodes[text], steps[text]) for index, text in sorted(dataset.tasks.items())]


def describe(dataset: Dataset) -> Iterator[str]:
    """Yield the lines of a description: schema, tasks, lengths of episodes, statistics."""
    yield describe_line(dataset)
    yield from _table("features", schema(dataset))
    yield from _table(
        "tasks", [(str(i), text, plural(n, "episode"), f"{s:,} steps") for i, text, n, s in tasks(dataset)]
    )
    lengths = sorted(episode.length for episode in dataset.episodes) or [0]
    if empty := [str(episode.index) for episode in dataset.episodes if not episode.length]:
        yield f"episodes without rows, which training leaves out: {', '.join(empty)}"
    yield f"episodes: {lengths[0]} to {lengths[-1]} steps, half of them over {lengths[len(lengths) // 2]}"
    if dataset.modality:
        parts = {kind: dataset.modality.get(kind) or {} for kind in ("state", "action", "video", "annotation")}
        yield from _table("modality.json", [(kind, ", ".join(part)) for kind, part in parts.items() if part])
    rows = [("column", "number", "min", "mean", "max", "std")]
    for key, number, values in named(dataset, dataset.statistics()):
        rows.append((key, number, *(f"{values[name]:.4g}" for name in ("min", "mean", "max", "std"))))
    yield from _table("statistics", rows)


def named(dataset: Dataset, statistics: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, dict[str, float]]]:
    """Yield (column, name of the number, its statistics) of states and actions."""
    for key, of in statistics.items():
        if key.startswith(("observation.", "action")) and key in dataset.features:
            for index, name in enumerate(names_of(dataset, key)):
                yield key, name, {stat: float(np.ravel(values)[index]) for stat, values in of.items()}


def _table(title: str, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    rows = [[single_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    yield f"{title}:"
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def verdict(faults: Sequence[DatasetFault]) -> Iterator[str]:
    """Yield a line for each kind of fault, grave ones first, and a summary line."""
    kinds: dict[tuple[bool, int | None, str], list[DatasetFault]] = {}
    for fault in sorted(faults, key=lambda fault: not fault.grave):
        kinds.setdefault((fault.grave, fault.row, fault.message), []).append(fault)
    for alike in list(kinds.values())[:MAX_FAULTS]:
        repeats = f" (and in {plural(len(alike) - 1, 'other file')})" if alike[1:] else ""
        yield single_line(f"{alike[0]}{repeats}")
    if len(kinds) > MAX_FAULTS:
        yield f"… and {len(kinds) - MAX_FAULTS} more kinds"
    grave = sum(fault.grave for fault in faults)
    notes = len(faults) - grave
    totals = [plural(number, noun) for number, noun in ((grave, "fault"), (notes, "note")) if number]
    yield ", ".join(totals) if totals else "no faults"


def progress(done: int, of: int) -> None:
    """Print the progress of a check, at most ten times."""
    if of > 10 and done and done % -(-of // 10) == 0:
        print(f"{done} of {of} episodes read", flush=True)
