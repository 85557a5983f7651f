"""Turn episodes into a LeRobot data set: rendered in parallel, each written when ready."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from services.metaworld.benchmark import BENCHMARK
from services.metaworld.datasets import layout
from services.metaworld.datasets.config import MetaworldDatasetOptions
from vla_common.volume import Volume, display_path, require_space
from vla_datasets import summary
from vla_datasets.conversion import SUFFIXES, WRITERS
from vla_datasets.errors import DatasetError
from vla_datasets.loader import open_dataset
from vla_datasets.writing import EpisodeSlot, Writer, episode_slots
from vla_evaluation.evaluate import choose_workers
from vla_evaluation.recording import Demonstration, draw, sources
from vla_evaluation.terminal import say

PIXEL_BYTES = 0.16  # per pixel of a video frame, measured on LIBERO's scenes
SPARE = 2**27  # bytes to leave free on the disk


def make(config: MetaworldDatasetOptions) -> Path:
    """Make the data set, restarting an interrupted one; return its directory."""
    volume = Volume()
    recorded = sources.find(config.source, volume, config.render)
    if recorded.facts["benchmark"] != BENCHMARK.name:
        raise DatasetError(
            f"{recorded.kind} {recorded.name} belongs to {recorded.facts['benchmark']}, not to {BENCHMARK.name}"
        )
    directory = volume.datasets / (config.name or recorded.name + SUFFIXES.get(config.format, ""))
    if directory.exists():
        raise DatasetError(f"{display_path(directory)} already exists; choose another --name, or remove it")
    episodes, cameras = sources.choose(recorded, config.keep_failures), config.camera_names
    keys = {layout.video_key(camera): camera for camera in cameras}
    source = recorded.provenance(episodes, keys, config.size, turned_180=False)
    features, modality = layout.features(cameras, config.size), layout.modality(cameras)
    writer = WRITERS[config.format](directory, layout.ROBOT, layout.FPS, features, modality, source)
    steps = sum(episode.steps for episode in episodes)
    require_space(directory, int(steps * len(cameras) * config.size**2 * PIXEL_BYTES) + SPARE)
    say(
        f"data set {directory.name} of {recorded.kind} {recorded.name}: {len(episodes)} episodes, "
        f"{steps:,} steps to render"
    )
    workers = choose_workers(config.workers, len(episodes), BENCHMARK.worker_gb)
    write_episode = partial(put, writer, episode_slots(episodes))
    for _ in draw(episodes, cameras, config.size, workers, write_episode):
        pass
    writer.finish()
    say(summary.describe_line(open_dataset(directory)))
    say(f"data set: {display_path(directory)}\nlook at it: ./lab dataset {directory.name} --show")
    return directory


def put(
    writer: Writer, slots: Mapping[int, EpisodeSlot], demo: Demonstration, images: Mapping[str, np.ndarray]
) -> None:
    """Write a rendered episode, in the process that rendered it."""
    columns = {layout.STATE: demo.states, layout.ACTION: demo.actions}
    videos = {layout.video_key(name): np.ascontiguousarray(of[:, ::-1]) for name, of in images.items()}
    writer.write(slots[demo.index], columns, videos)
