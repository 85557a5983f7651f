"""Episodes to a LeRobot data set: drawn in parallel, written as each is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from services.metaworld.benchmark import BENCHMARK
from services.metaworld.datasets import layout
from services.metaworld.datasets.config import Config
from vla_common.volume import Volume, require_space, shown
from vla_datasets import summary
from vla_datasets.errors import DatasetError
from vla_datasets.opening import open_dataset
from vla_datasets.writing import Place, Writer
from vla_evaluation.evaluate import choose_workers
from vla_evaluation.recording import Demonstration, draw, sources
from vla_evaluation.terminal import say

PIXEL_BYTES = 0.16  # of a film's picture, per pixel: measured on LIBERO's scenes
SPARE = 2**27  # bytes that stay free
KEPT = ("task", "episode", "seed", "success", "steps")  # of each episode, in meta/source.json


def make(config: Config) -> Path:
    """Makes the data set, from its beginning where one was interrupted; returns it."""
    volume = Volume()
    found = sources.find(config.source, volume, config.render)
    if found.facts["benchmark"] != BENCHMARK.name:
        raise DatasetError(f"{found.kind} {found.name} is one of {found.facts['benchmark']}, not of {BENCHMARK.name}")
    directory = volume.datasets / (config.name or found.name)
    if directory.exists():
        raise DatasetError(f"{shown(directory)} is there already; choose another --name, or remove it")
    episodes, cameras = sources.choose(found, config.keep_failures), config.camera_names
    source = describe(found, episodes, cameras, config.size)
    features, modality = layout.features(cameras, config.size), layout.modality(cameras)
    writer = Writer(directory, layout.ROBOT, layout.FPS, features, modality, source)
    steps = sum(episode.steps for episode in episodes)
    require_space(directory, int(steps * len(cameras) * config.size**2 * PIXEL_BYTES) + SPARE)
    say(f"data set {directory.name} of {found.kind} {found.name}: {len(episodes)} episodes, {steps:,} steps to draw")
    workers = choose_workers(config.workers, len(episodes), BENCHMARK.worker_gb)
    then = partial(put, writer, places(episodes))
    for _ in draw(episodes, cameras, config.size, workers, then):
        pass
    writer.finish()
    say(summary.describe_line(open_dataset(directory)))
    say(f"data set: {shown(directory)}\nlook at it: ./lab dataset {directory.name} --show")
    return directory


def places(episodes: Sequence[Demonstration]) -> dict[int, Place]:
    """Returns where each episode belongs, by its index: so its rows do not depend on which is written first."""
    found, row, texts = {}, 0, {}
    for episode in episodes:
        found[episode.index] = Place(
            episode.index, row, texts.setdefault(episode.instruction, len(texts)), episode.instruction
        )
        row += episode.steps
    return found


def describe(
    found: sources.Episodes, episodes: Sequence[Demonstration], cameras: tuple[str, ...], size: int
) -> dict[str, Any]:
    """Returns what the set keeps of where it is from: enough to say what a model has learned from."""
    return {
        **found.facts,
        "action": [asdict(part) for part in found.facts["action"]],
        "state": [asdict(part) for part in found.facts["state"]],
        "cameras": {layout.video_key(camera): camera for camera in cameras},
        "size": size,
        "turned_180": False,
        "episodes": [{name: getattr(episode, name) for name in KEPT} for episode in episodes],
    }


def put(writer: Writer, where: Mapping[int, Place], one: Demonstration, drawn: Mapping[str, np.ndarray]) -> None:
    """Writes an episode that was just drawn, in the process that drew it."""
    columns = {layout.STATE: one.states, layout.ACTION: one.actions}
    videos = {layout.video_key(name): np.ascontiguousarray(of[:, ::-1]) for name, of in drawn.items()}
    writer.write(where[one.index], columns, videos)
