"""Render a data set as an HTML page: content, statistics, and episodes with videos and curves."""

from __future__ import annotations

import base64
import os
import tempfile
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from vla_common.regular_files import open_regular
from vla_datasets import marks, metadata, statistics, summary, videos
from vla_datasets.dataset import Dataset
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.metadata import Episode

MAX_EPISODES = 12  # episodes, of as many tasks as possible
EMBED_BYTES = 24_000_000  # of all embedded videos; a browser opens larger pages slowly
POINTS = 240  # of a curve, at most
WIDTH, HEIGHT = 240, 56  # of a chart's drawing
LINES = 8  # in one chart
TABLE = 200  # rows of statistics


def write(dataset: Dataset, path: Path, faults: list | None = None) -> Path:
    """Write the page, with the faults on top if there was a check; return its path."""
    html = render(dataset, faults)
    with metadata.replacing(path) as partial:
        partial.write_text(html, encoding="utf-8", errors="backslashreplace")
    return path


def render(dataset: Dataset, faults: list | None = None) -> str:
    """Return the page as HTML."""
    room = EMBED_BYTES
    excerpts = []
    for episode in _choose_episodes(dataset):
        videos = []
        for key in dataset.video_keys if episode.length else ():
            try:
                data = _read_video(dataset, episode, key, room)
            except DatasetError:  # --check reports it
                continue
            room -= len(data)
            uri = f"data:video/mp4;base64,{base64.b64encode(data).decode()}" if data else None
            videos.append((key.removeprefix("observation.images."), uri))
        excerpts.append({"episode": episode, "videos": videos, "charts": charts(dataset, episode)})
    try:
        numbers = list(summary.named(dataset, dataset.statistics()))
    except DatasetError:  # --check reports it
        numbers = []
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("page.html.j2").render(
        dataset=dataset,
        bad=marks.read(dataset).bad,
        layout=summary.layout(dataset),
        megabytes=summary.size(dataset.directory) / 1e6,
        schema=summary.schema(dataset),
        tasks=summary.tasks(dataset),
        statistics=numbers[:TABLE],
        excerpts=excerpts,
        verdict=None if faults is None else list(summary.verdict(faults)),
        in_order=not any(fault.grave for fault in faults or ()),
        width=WIDTH,
        height=HEIGHT,
    )


def _choose_episodes(dataset: Dataset) -> list[Episode]:
    """Return the episodes to display: the first of every task, then others, in the set's order."""
    firsts = {episode.tasks[0]: episode for episode in reversed(dataset.episodes) if episode.tasks}.values()
    chosen = sorted(dataset.episodes, key=lambda episode: episode not in firsts)[:MAX_EPISODES]
    return sorted(chosen, key=lambda episode: episode.index)


def _read_video(dataset: Dataset, episode: Episode, key: str, room: int) -> bytes:
    """Return a video file's bytes, empty if more than `room`; images in rows, and of v3.0, are encoded for it."""
    with tempfile.TemporaryDirectory(prefix="vla-lab-page-") as directory:
        is_video = dataset.features[key]["dtype"] == "video"
        if isinstance(dataset, LeRobotDataset) and is_video and not dataset.is_v3:
            path = dataset.images_path(episode.index, key)
        else:
            path = Path(directory) / "video.mp4"
            videos.write(path, dataset.frames(episode.index, key), dataset.fps)
        try:
            with open_regular(path) as file:
                return file.read() if os.fstat(file.fileno()).st_size <= room else b""
        except OSError as error:
            raise DatasetError(f"{path} cannot be read: {error}") from error


def charts(dataset: Dataset, episode: Episode) -> list[dict[str, Any]]:
    """Return a chart for each part of modality.json or, without one, for each column: title, low and high (the ends of
    its axis) and lines, each with name and points of a polyline.
    """
    try:
        columns = dataset.columns(episode.index) if episode.length else {}
    except DatasetError:
        return []
    parts = []  # title, column, range of its numbers
    for kind, usual in (("action", "action"), ("state", "observation.state")):
        for name, part in ((dataset.modality or {}).get(kind) or {}).items():
            if isinstance(part, dict) and type(part.get("start")) is int and type(part.get("end")) is int:
                indices = range(part["start"], part["end"])
                parts.append((f"{kind} {name}", part.get("original_key") or usual, indices))
    if not parts:
        keys = [key for key in dataset.column_keys if key.startswith(("action", "observation."))]
        parts = [(key, key, range(len(summary.names_of(dataset, key)))) for key in sorted(keys)]
    built = []
    for title, key, indices in parts:
        if key in columns and columns[key].dtype != object:
            values = statistics.as_rows(columns[key])
            valid = range(max(0, indices.start), min(indices.stop, values.shape[1]))
            names = summary.names_of(dataset, key)
            named = [(names[index] if index < len(names) else str(index), values[:, index]) for index in valid]
            built += [_chart(title, named[at : at + LINES]) for at in range(0, len(named), LINES)]
    return built


def _chart(title: str, named: list[tuple[str, np.ndarray]]) -> dict[str, Any]:
    every = max(1, -(-len(named[0][1]) // POINTS)) if named else 1
    values = np.array([series[::every] for _, series in named], np.float64)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    x = np.linspace(0, WIDTH, values.shape[1]) if values.shape[1] > 1 else np.array([0.0])
    y = HEIGHT - 3 - (values - low) / ((high - low) or 1) * (HEIGHT - 6)
    lines = []
    for (name, _), row in zip(named, y, strict=True):
        points = (f"{a:.1f},{b:.1f}" for a, b in zip(x, row, strict=True) if np.isfinite(b))
        lines.append({"name": name, "points": " ".join(points)})
    return {"title": title, "low": f"{low:.3g}", "high": f"{high:.3g}", "lines": lines}
