"""The page: what the set holds, its statistics, and episodes with their films and the curves of their numbers."""

from __future__ import annotations

import base64
import os
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
import numpy as np

from vla_common.regular_files import open_regular
from vla_datasets import films, marks, statistics, telling
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.metadata import Episode

if TYPE_CHECKING:
    from vla_datasets.hdf5 import LiberoFiles

SHOWN = 12  # episodes, of as many tasks as possible
EMBED_BYTES = 24_000_000  # of films; those beyond are left out, so that a browser opens the page at once
POINTS = 240  # of a curve, at most
WIDTH, HEIGHT = 240, 56  # of a chart's drawing
LINES = 8  # in one chart
TABLE = 200  # rows of statistics


@dataclass(frozen=True)
class Line:
    """One number over an episode: its name, and the points of a polyline."""

    name: str
    points: str


@dataclass(frozen=True)
class Chart:
    """Numbers that belong together; low and high are the chart's edges."""

    title: str
    low: str
    high: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Shown:
    """One episode of the page; a film is (camera, data URI, None where there was no room)."""

    episode: Episode
    films: tuple[tuple[str, str | None], ...]
    charts: tuple[Chart, ...]


def write(dataset: LeRobotDataset | LiberoFiles, path: Path, faults: list | None = None) -> Path:
    """Writes the page; `faults`, where they were looked for, stand on top. Returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(render(dataset, faults), encoding="utf-8", errors="backslashreplace")
    partial.replace(path)
    return path


def render(dataset: LeRobotDataset | LiberoFiles, faults: list | None = None) -> str:
    """Returns the page as HTML."""
    room = EMBED_BYTES
    shown = []
    for episode in chosen(dataset):
        clips, room = _films(dataset, episode, room)
        shown.append(Shown(episode, clips, charts(dataset, episode)))
    return _template().render(
        dataset=dataset,
        bad=marks.read(dataset).bad,
        summary=telling.summary(dataset),
        layout=telling.layout(dataset),
        megabytes=telling.size(dataset.folder) / 1e6,
        schema=telling.schema(dataset),
        tasks=telling.tasks(dataset),
        statistics=_statistics(dataset)[:TABLE],
        shown=shown,
        verdict=None if faults is None else list(telling.verdict(faults)),
        in_order=not any(one.grave for one in faults or ()),
        width=WIDTH,
        height=HEIGHT,
    )


@cache
def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    made = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    made.undefined = jinja2.StrictUndefined
    return made.get_template("page.html.j2")


def chosen(dataset: LeRobotDataset | LiberoFiles) -> list[Episode]:
    """Returns the episodes to show: the first of every task, then the others, in the set's order."""
    seen: set[str] = set()
    firsts = [one for one in dataset.episodes if one.tasks and one.tasks[0] not in seen and not seen.add(one.tasks[0])]
    others = [one for one in dataset.episodes if one not in firsts]
    return sorted((firsts + others)[:SHOWN], key=lambda one: one.index)


def _films(
    dataset: LeRobotDataset | LiberoFiles, episode: Episode, room: int
) -> tuple[tuple[tuple[str, str | None], ...], int]:
    """Returns an episode's films, and how many bytes there is room for after them."""
    found = []
    for key in dataset.video_keys if episode.length else ():
        try:
            data = _bytes(dataset, episode, key, room)
        except DatasetError:  # the check says why
            continue
        room -= len(data)
        uri = f"data:video/mp4;base64,{base64.b64encode(data).decode()}" if data else None
        found.append((key.removeprefix("observation.images."), uri))
    return tuple(found), room


def _bytes(dataset: LeRobotDataset | LiberoFiles, episode: Episode, key: str, room: int) -> bytes:
    """Return a film's file, empty where it has more than `room` bytes; pictures that lie in the rows become one."""
    with tempfile.TemporaryDirectory(prefix="vla-lab-page-") as folder:
        if isinstance(dataset, LeRobotDataset) and dataset.features[key]["dtype"] == "video":
            path = dataset.video_path(episode.index, key)
        else:
            path = Path(folder) / "film.mp4"
            films.write(path, dataset.frames(episode.index, key), dataset.fps)
        try:
            with open_regular(path) as file:
                return file.read() if os.fstat(file.fileno()).st_size <= room else b""
        except OSError as error:
            raise DatasetError(f"{path} cannot be read: {error}") from error


def charts(dataset: LeRobotDataset | LiberoFiles, episode: Episode) -> tuple[Chart, ...]:
    """Returns a chart for each part of modality.json, or for each column where there is none."""
    try:
        columns = dataset.columns(episode.index)
    except DatasetError:
        return ()
    if not episode.length:
        return ()
    found = []
    for title, key, places in _parts(dataset):
        if key in columns and columns[key].dtype != object:
            values = statistics.as_rows(columns[key])
            known = range(max(0, places.start), min(places.stop, values.shape[1]))
            names = telling.names_of(dataset, key)
            named = [(names[place] if place < len(names) else str(place), values[:, place]) for place in known]
            found += [_chart(title, named[at : at + LINES]) for at in range(0, len(named), LINES)]
    return tuple(found)


def _parts(dataset: LeRobotDataset | LiberoFiles) -> list[tuple[str, str, range]]:
    """Returns (title, column, its numbers)."""
    parts = []
    for kind, usual in (("action", "action"), ("state", "observation.state")):
        for name, part in ((dataset.modality or {}).get(kind) or {}).items():
            if isinstance(part, dict) and type(part.get("start")) is int and type(part.get("end")) is int:
                places = range(part["start"], part["end"])
                parts.append((f"{kind} {name}", part.get("original_key") or usual, places))
    if not parts:
        keys = [key for key in dataset.column_keys if key.startswith(("action", "observation."))]
        parts = [(key, key, range(len(telling.names_of(dataset, key)))) for key in sorted(keys)]
    return parts


def _chart(title: str, named: list[tuple[str, np.ndarray]]) -> Chart:
    every = max(1, -(-len(named[0][1]) // POINTS)) if named else 1
    values = np.array([one[::every] for _, one in named], np.float64)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    x = np.linspace(0, WIDTH, values.shape[1]) if values.shape[1] > 1 else np.array([0.0])
    y = HEIGHT - 3 - (values - low) / ((high - low) or 1) * (HEIGHT - 6)
    lines = []
    for (name, _), row in zip(named, y, strict=True):
        lines.append(Line(name, " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, row, strict=True) if np.isfinite(b))))
    return Chart(title, f"{low:.3g}", f"{high:.3g}", tuple(lines))


def _statistics(dataset: LeRobotDataset | LiberoFiles) -> list[tuple[str, str, dict[str, float], float, float]]:
    """Returns (column, number, statistics, where mean and the inner 98 % lie) for each number."""
    try:
        return list(telling.statistics(dataset))
    except DatasetError:
        return []
