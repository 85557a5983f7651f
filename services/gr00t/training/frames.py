"""A data set's pictures by episode and step; films that were decoded once stay in memory, up to a limit.

The memory is one for all processes that read (it is mapped before they are made). Which films have a place in it is
settled at the start, so that nothing is thrown out to be decoded again; the others are decoded frame by frame.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.videos import OpenVideos, frame_count

OPEN_VIDEOS = 256  # per process
TOGETHER = 32  # frames that are decoded into one array
EMPTY, TAKEN, THERE = 0, 1, 2  # of a film's place: TAKEN while a process decodes it


class Frames:
    """Pictures of the features `keys`, all uint8 [3, height, width]."""

    def __init__(self, dataset: LeRobotDataset, keys: Sequence[str], image_hw: tuple[int, int]):
        self.dataset, self.keys, self.videos = dataset, tuple(keys), OpenVideos(OPEN_VIDEOS)
        self.shape = (3, *image_hw)
        self._kept: dict[tuple[int, str], tuple[int, np.ndarray]] = {}
        self._states = np.zeros(0, np.uint8)

    @property
    def bytes(self) -> int:
        """How much all pictures take when they are decoded."""
        return sum(episode.length for episode in self.dataset.episodes) * len(self.keys) * int(np.prod(self.shape))

    def keep(self, most: int) -> int:
        """Makes room for decoded films in at most `most` bytes; returns how many it takes. Other processes come after.

        A film is decoded when its first frame is asked for, and whole: in order that costs hardly more than one frame.
        """
        places, size = [], 0
        for episode in self.dataset.episodes:
            taken = episode.length * int(np.prod(self.shape))
            for key in self.keys:
                if taken and size + taken <= most:
                    places.append(((episode.index, key), size, episode.length))
                    size += taken
        if places:
            memory = mmap.mmap(-1, size)
            self._states = np.frombuffer(mmap.mmap(-1, len(places)), np.uint8)
            self._kept = {
                film: (number, np.ndarray((length, *self.shape), np.uint8, memory, start))
                for number, (film, start, length) in enumerate(places)
            }
        return size

    def at(self, episode: int, step: int) -> list[np.ndarray]:
        """Returns uint8 [3, H, W] for each feature, not to be written to. Raises DatasetError where a film lacks it."""
        return [self._frame(episode, key, step) for key in self.keys]

    def require(self) -> None:
        """Raises ValueError naming a film that is missing, or has fewer frames than its episode has steps."""
        for episode in self.dataset.episodes:
            for key in self.keys if episode.length else ():
                if self.dataset.features[key]["dtype"] == "video":
                    _require(self.dataset.video_path(episode.index, key), episode.length)

    def _frame(self, episode: int, key: str, step: int) -> np.ndarray:
        number, kept = self._kept.get((episode, key), (0, None))
        state = TAKEN if kept is None else self._states[number]  # once: another process may change it at any moment
        if state == TAKEN:
            return self._read(episode, key, [step])[0]
        if state == EMPTY:
            self._states[number] = TAKEN  # two processes at once write the same
            self._fill(episode, key, kept)
            self._states[number] = THERE
        return kept[step]

    def _fill(self, episode: int, key: str, kept: np.ndarray) -> None:
        for start in range(0, len(kept), TOGETHER):
            steps = range(start, min(start + TOGETHER, len(kept)))
            kept[steps.start : steps.stop] = self._read(episode, key, steps)

    def _read(self, episode: int, key: str, steps: Sequence[int]) -> np.ndarray:
        if self.dataset.features[key]["dtype"] == "image":
            found = self.dataset.frames(episode, key, steps)
        else:
            found = self.videos[self.dataset.video_path(episode, key)].frames(steps)
        return found.transpose(0, 3, 1, 2)


def _require(path: Path, length: int) -> None:
    there = frame_count(path)
    if there < length:
        raise ValueError(f"{path} has {there} frames; its episode has {length} steps")
