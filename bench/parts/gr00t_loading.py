"""Training samples for GR00T, from videos to a collated batch: this project and upstream alternately, one thread.

Both make the same samples of one data set (two cameras of 256 × 256, a key frame every second frame, as this project
and LeRobot write videos; a smooth scene with moving objects). Both use one thread, as a worker process does. Ours is
timed in its first epoch, which decodes every video, in later ones, which find them in memory, and without a cache.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from bench.common import figure, interleaved
from services.gr00t.checkpoint import tokenizer
from services.gr00t.checkpoint.config import load_config
from services.gr00t.checkpoint.directory import CheckpointDirectory
from services.gr00t.processing.prompt import Prompts
from services.gr00t.training.robot import TrainingRobot, robot_of
from services.gr00t.training.samples import Samples, collate
from tests.gr00t.upstream import package
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.writing import Writer

EPISODES, LENGTH, SIDE, FPS = 4, 80, 256, 20
CAMERAS = ("front", "wrist")
BATCH = 16


def loading(checkpoint: CheckpointDirectory, directory: Path) -> None:
    """Prints samples per second of every way, and the FIGURE lines where upstream's is here."""
    dataset = LeRobotDataset(recordings(directory / "recordings"))
    robot = robot_of(dataset, "new_embodiment", checkpoint)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        sides = {**ours(checkpoint, dataset, robot), **theirs(dataset, robot)}
        seconds = interleaved(sides, EPISODES * LENGTH // BATCH, warmup=0)
    finally:
        torch.set_num_threads(threads)
    rates = {name: EPISODES * LENGTH / sum(values) for name, values in seconds.items()}
    print(f"\n{len(dataset)} samples of {len(CAMERAS)} cameras, one thread, a batch of {BATCH} of each side in turns")
    for name, rate in rates.items():
        print(f"  {name:28} {rate:7.1f} samples/s")
    if upstream := [rate for name, rate in rates.items() if name.startswith("upstream")]:
        for name, target in (("first epoch", ">=2"), ("later epochs", ">=5")):
            ratio = rates[f"ours, {name}"] / max(upstream)
            figure(f"gr00t_loader_{name.split()[0]}", ratio, "ratio", target, quick=True)


def ours(
    checkpoint: CheckpointDirectory, dataset: LeRobotDataset, robot: TrainingRobot
) -> dict[str, Callable[[], object]]:
    """Return functions that make the next batch: with a cold video cache, a warm one, and none."""
    config = load_config(checkpoint.directory)
    prompts = Prompts(tokenizer.load(checkpoint.directory), len(CAMERAS), config.patches)
    made = {
        name: Samples(dataset, robot, prompts, config.head, config.vision["image_size"], seed=0)
        for name in ("ours, first epoch", "ours, later epochs", "ours, nothing kept")
    }
    for name in ("ours, first epoch", "ours, later epochs"):
        made[name].frames.keep(made[name].frames.bytes)
    later = made["ours, later epochs"]
    for index in range(len(later)):
        later[index]
    return {name: batches(samples, collate, range(len(samples))) for name, samples in made.items()}


def theirs(dataset: LeRobotDataset, robot: TrainingRobot) -> dict[str, Callable[[], object]]:
    """Return functions that make upstream's next batch, per available decoder; none without its code."""
    if (reason := package.missing()) is not None:
        print(f"upstream's loader is left out: {reason}")
        return {}
    package.prepare()
    with contextlib.redirect_stdout(sys.stderr):  # upstream prints as it goes
        from gr00t.data.dataset import LeRobotSingleDataset
        from gr00t.model.transforms import DefaultDataCollator

        modalities, transforms = package.data_config(robot.embodiment)
        made = {
            f"upstream, {decoder}": LeRobotSingleDataset(
                str(dataset.directory), modalities, robot.embodiment.tag, video_backend=decoder, transforms=transforms
            )
            for decoder, module in {"torchvision_av": "av", "decord": "decord", "torchcodec": "torchcodec"}.items()
            if find_spec(module)
        }
    order = np.random.default_rng(0).permutation(len(dataset)).tolist()
    collate = DefaultDataCollator()
    for samples in made.values():
        collate([samples[0]])  # exclude the time of first-use loading
    return {name: batches(samples, collate, order) for name, samples in made.items()}


def batches(samples: object, collate: Callable, order: object) -> Callable[[], object]:
    """Return a function that makes the next batch, in that order."""
    indices = itertools.cycle(order)
    return lambda: collate([samples[next(indices)] for _ in range(BATCH)])


def recordings(directory: Path) -> Path:
    """Return a data set: a disc that moves over a shaded ground, with the noise of a camera."""
    images = {f"observation.images.{name}": {"dtype": "video", "shape": [SIDE, SIDE, 3]} for name in CAMERAS}
    numbers = {name: {"dtype": "float32", "shape": [7]} for name in ("observation.state", "action")}
    parts = {"arm": {"start": 0, "end": 6}, "gripper": {"start": 6, "end": 7}}
    video = {name: {"original_key": f"observation.images.{name}"} for name in CAMERAS}
    annotation = {"human.task_description": {"original_key": "task_index"}}
    modality = {"state": parts, "action": parts, "video": video, "annotation": annotation}
    writer = Writer(directory, "bench", FPS, {**images, **numbers}, modality)
    for index in range(EPISODES):
        draw = np.random.default_rng(index)
        columns = {name: draw.normal(size=(LENGTH, 7)).astype(np.float32) for name in numbers}
        writer.add(columns, {name: random_video(draw) for name in images}, "pick up the cup")
    writer.finish()
    return directory


def random_video(draw: np.random.Generator) -> np.ndarray:
    """Return uint8 [T, side, side, 3]."""
    rows, columns = np.indices((SIDE, SIDE)) / SIDE
    ground = np.stack([rows, columns, 1 - rows * columns], -1) * 200 + 20
    frames = np.empty((LENGTH, SIDE, SIDE, 3), np.uint8)
    for step, (x, y) in enumerate(np.cumsum(draw.normal(0, 0.01, (LENGTH, 2)), 0) + 0.5):
        inside = ((columns - x) ** 2 + (rows - y) ** 2 < 0.02)[..., None]
        seen = np.where(inside, (220, 60, 40), ground) + draw.normal(0, 2, ground.shape)
        frames[step] = np.clip(seen, 0, 255)
    return frames
