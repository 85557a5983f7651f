"""What the audit reads of each episode: its numbers, and a few small images of each camera."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vla_datasets.dataset import Dataset
from vla_datasets.errors import DatasetError
from vla_datasets.metadata import ACTION, STATE, Episode
from vla_datasets.statistics import as_rows

FRAMES, SIDE = 16, 16  # images per episode and camera, pixels of their sides
CHANGE = 16  # levels of 255: more than noise and compression
MIN_STEPS = 8  # shorter episodes are left out
MAX_EPISODES = 300  # looked at: spread over larger sets


@dataclass(frozen=True)
class Sample:
    """An episode.

    steps   int [FRAMES]: those of the images
    state, action  float64 [T, n], [T, m]; n or m is 0 where the set has none
    images  float32 [FRAMES, SIDE, SIDE, 3] in 0…1 by camera
    motion  float64 [FRAMES - 1] by camera: share of the pixels that change from one of the images to the next
    """

    episode: Episode
    steps: np.ndarray
    state: np.ndarray
    action: np.ndarray
    images: dict[str, np.ndarray]
    motion: dict[str, np.ndarray]

    @property
    def index(self) -> int:
        """The number of the episode."""
        return self.episode.index

    def arm_motion(self, scale: np.ndarray) -> np.ndarray:
        """Return float64 [FRAMES - 1]: how far the state moves from image to image, in units of `scale` [n]."""
        return np.linalg.norm(np.diff(self.state[self.steps], axis=0) / scale, axis=1)


def shrink(frames: np.ndarray) -> np.ndarray:
    """Return float32 [n, SIDE, SIDE, 3] in 0…1: the means of uint8 [n, H, W, 3] over equal parts."""
    for axis in (1, 2):
        edges = np.linspace(0, frames.shape[axis], SIDE + 1).astype(int)[:-1]
        counts = np.diff([*edges, frames.shape[axis]]).reshape([-1 if one == axis else 1 for one in range(4)])
        frames = np.add.reduceat(frames.astype(np.float32), edges, axis=axis) / np.maximum(counts, 1)
    return frames / 255


def read(dataset: Dataset, tick: Callable[[int, int], None]) -> list[Sample]:
    """Return a sample of each episode of enough steps. Raises DatasetError for one that cannot be read."""
    episodes = [episode for episode in dataset.episodes if episode.length >= MIN_STEPS]
    if len(episodes) > MAX_EPISODES:
        spread = np.linspace(0, len(episodes) - 1, MAX_EPISODES).round().astype(int)
        episodes = [episodes[number] for number in spread]
    samples = []
    for done, episode in enumerate(episodes):
        tick(done, len(episodes))
        samples.append(read_sample(dataset, episode))
    return samples


def read_sample(dataset: Dataset, episode: Episode) -> Sample:
    """Return the sample of one episode."""
    columns, none = dataset.columns(episode.index), np.zeros((episode.length, 0))
    state, action = (
        as_rows(columns[key]).astype(np.float64) if key in columns and columns[key].dtype != object else none
        for key in (STATE, ACTION)
    )
    if not all(np.isfinite(values).all() for values in (state, action)):
        raise DatasetError(f"episode {episode.index} has NaN or infinity; see ./lab dataset {dataset.name} --check")
    steps = np.linspace(0, episode.length - 1, FRAMES).round().astype(int)
    images, motion = {}, {}
    for key in dataset.video_keys:
        try:
            frames = dataset.frames(episode.index, key, steps)
        except DatasetError:  # a camera may be missing in some episodes: --check reports it
            continue
        images[key] = shrink(frames)
        changes = np.abs(np.diff(frames[:, ::2, ::2].astype(np.int16), axis=0))
        motion[key] = (changes.max(axis=3) > CHANGE).mean(axis=(1, 2))
    return Sample(episode, steps, state, action, images, motion)


def robust_z(values: np.ndarray, floor: float = 0.0) -> np.ndarray:
    """Return how far each value is above the median, in robust standard deviations of at least `floor`."""
    middle = np.median(values)
    return (values - middle) / max(1.4826 * float(np.median(np.abs(values - middle))), floor, 1e-12)
