"""Check an episode's videos: complete, a frame per row, with the rate and size of info.json."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from vla_datasets import statistics, videos
from vla_datasets.checks.findings import Findings
from vla_datasets.checks.rows import RowTotals
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.metadata import Episode

LONG_GROUP = 30  # frames between key frames; with more, reading single frames slows training down
Columns = dict[str, np.ndarray]


def check(
    findings: Findings, dataset: LeRobotDataset, episode: Episode, key: str, columns: Columns | None, totals: RowTotals
) -> None:
    """Check an episode's video, or its images in the rows; store their statistics."""
    if dataset.features[key]["dtype"] == "image":
        if columns is not None:  # else the table is reported already
            path = dataset.data_path(episode.index)
            _keep(totals, episode, key, _decode(findings, path, lambda: dataset.frames(episode.index, key)))
        return
    clip = dataset.clip(episode.index, key)
    path = clip.path
    try:
        video = totals.videos[path]
    except DatasetError as error:
        if path.is_file() or (dataset.directory / path).parent.is_dir() or _needed(dataset, key):
            findings.error(path, error)
        elif episode == dataset.episodes[0]:
            findings.note("meta/info.json", f"feature {key} has no videos; modality.json does not use it")
        return
    if not dataset.is_v3:
        rows = episode.length if columns is None else len(next(iter(columns.values()), ()))
        if len(video) != rows:
            findings.add(path, f"{len(video)} frames; the episode has {rows} rows")
    if not clip.start_s:
        _check_video(findings, dataset, key, video)
    _keep(totals, episode, key, _decode(findings, path, lambda: totals.videos.frames(clip)))


def _keep(totals: RowTotals, episode: Episode, key: str, images: np.ndarray | None) -> None:
    if images is not None and len(images) and images.shape[-1] == 3:
        totals.images[episode.index, key] = statistics.of_images(images)


def _needed(dataset: LeRobotDataset, key: str) -> bool:
    """Return whether a feature's videos are required: GR00T reads those that modality.json names."""
    videos = (dataset.modality or {}).get("video")
    if not isinstance(videos, dict):
        return True
    return key in {(video or {}).get("original_key") or name for name, video in videos.items()}


def _check_video(findings: Findings, dataset: LeRobotDataset, key: str, video: videos.Video) -> None:
    path, feature = video.path, dataset.features[key]
    if video.rate is None or abs(float(video.rate) - dataset.fps) > 1e-3:
        findings.add(path, f"{float(video.rate or 0):g} frames per second; info.json says {dataset.fps:g}")
    shape = [video.height, video.width, 3]
    if list(feature.get("shape") or ()) not in (shape, [3, *shape[:2]]):
        findings.add(path, f"images of {shape}; info.json says {feature.get('shape')}")
    _encoding(findings, video, feature)


def _encoding(findings: Findings, video: videos.Video, feature: dict) -> None:
    video_info = feature.get("info") or feature.get("video_info") or {}
    codec = video_info.get("video.codec", video.codec)
    if _family(codec) != _family(video.codec):
        findings.add(video.path, f"the codec is {video.codec}; info.json says {codec}")
    if _family(video.codec) != videos.CODEC:
        findings.add(
            video.path, f"the codec is {video.codec}, which some decoders cannot read (decord: AV1); use H.264"
        )
    if video.pixels != video_info.get("video.pix_fmt", video.pixels):
        findings.add(video.path, f"pixels are {video.pixels}; info.json says {video_info['video.pix_fmt']}")
    if video.longest_group > LONG_GROUP:
        text = f"a key frame only every {video.longest_group} frames: reading one frame decodes that many"
        findings.note(video.path, f"{text}; training reads it slowly")
    if len(video) and abs(video.seconds[0]) > 1e-3:
        findings.add(video.path, f"starts at {video.seconds[0]:.3f} s; loaders with timestamps read other frames", 0)


def _family(codec: str) -> str:
    """Return the codec of an encoder's or decoder's name."""
    return "av1" if "av1" in codec else "h264" if codec in ("avc1", "libx264") else codec


def _decode(findings: Findings, path: Path, read: Callable[[], np.ndarray]) -> np.ndarray | None:
    try:
        return read()
    except DatasetError as error:
        findings.error(path, error)
        return None
