"""An episode's videos: whole, as many frames as rows, as fast and as large as info.json says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from vla_datasets import statistics, videos
from vla_datasets.checks.findings import Findings
from vla_datasets.checks.rows import Totals
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.metadata import Episode

LONG_GROUP = 30  # frames from key frame to key frame; more and reading one frame takes a training loader's time
Columns = dict[str, np.ndarray]


def check(
    found: Findings, dataset: LeRobotDataset, episode: Episode, key: str, columns: Columns | None, totals: Totals
) -> None:
    """Checks an episode's film, or its pictures that lie in the rows; keeps their statistics."""
    if dataset.features[key]["dtype"] == "image":
        if columns is not None:  # else the table is reported already
            path = dataset.data_path(episode.index)
            _keep(totals, episode, key, _decode(found, path, lambda: dataset.frames(episode.index, key)))
        return
    path = dataset.video_path(episode.index, key)
    try:
        film = videos.Video(path)
    except DatasetError as error:
        if path.is_file() or (dataset.folder / path).parent.is_dir() or _needed(dataset, key):
            found.error(path, error)
        elif episode == dataset.episodes[0]:
            found.note("meta/info.json", f"feature {key} has no films, and modality.json does without it")
        return
    try:
        _keep(totals, episode, key, _film(found, dataset, episode, key, film, columns))
    finally:
        film.close()


def _keep(totals: Totals, episode: Episode, key: str, pictures: np.ndarray | None) -> None:
    if pictures is not None and len(pictures) and pictures.shape[-1] == 3:
        totals.images[episode.index, key] = statistics.of_pictures(pictures)


def _needed(dataset: LeRobotDataset, key: str) -> bool:
    """Returns whether a film that is missing everywhere is missed: GR00T reads what modality.json names."""
    videos = (dataset.modality or {}).get("video")
    if not isinstance(videos, dict):
        return True
    return key in {(one or {}).get("original_key") or name for name, one in videos.items()}


def _film(
    found: Findings, dataset: LeRobotDataset, episode: Episode, key: str, film: videos.Video, columns: Columns | None
) -> np.ndarray | None:
    path, feature = film.path, dataset.features[key]
    rows = episode.length if columns is None else len(next(iter(columns.values()), ()))
    if len(film) != rows:
        found.add(path, f"{len(film)} frames; the episode has {rows} rows")
    if film.rate is None or abs(float(film.rate) - dataset.fps) > 1e-3:
        found.add(path, f"{float(film.rate or 0):g} frames per second; info.json says {dataset.fps:g}")
    shape = [film.height, film.width, 3]
    if list(feature.get("shape") or ()) not in (shape, [3, *shape[:2]]):
        found.add(path, f"pictures of {shape}; info.json says {feature.get('shape')}")
    _encoding(found, film, feature)
    return _decode(found, path, film.frames)


def _encoding(found: Findings, film: videos.Video, feature: dict) -> None:
    told = feature.get("info") or feature.get("video_info") or {}
    codec = told.get("video.codec", film.codec)
    if _family(codec) != _family(film.codec):
        found.add(film.path, f"the codec is {film.codec}; info.json says {codec}")
    if _family(film.codec) != videos.CODEC:
        found.add(film.path, f"the codec is {film.codec}, which not every decoder reads (decord: no AV1); use H.264")
    if film.pixels != told.get("video.pix_fmt", film.pixels):
        found.add(film.path, f"pixels are {film.pixels}; info.json says {told['video.pix_fmt']}")
    if film.longest_group > LONG_GROUP:
        text = f"a key frame only every {film.longest_group} frames: reading one frame decodes that many"
        found.note(film.path, f"{text}; training reads it slowly")
    if len(film) and abs(film.seconds[0]) > 1e-3:
        found.add(film.path, f"begins at {film.seconds[0]:.3f} s; loaders that go by time show other frames", 0)


def _family(codec: str) -> str:
    """Returns a codec's name, for that of one of its encoders or decoders."""
    return "av1" if "av1" in codec else "h264" if codec in ("avc1", "libx264") else codec


def _decode(found: Findings, path: Path, read: Callable[[], np.ndarray]) -> np.ndarray | None:
    try:
        return read()
    except DatasetError as error:
        found.error(path, error)
        return None
