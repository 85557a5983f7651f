"""A data set's images by episode and step; decoded videos are cached in memory, up to a limit.

All reader processes share the memory (it is mapped before they start). Which videos are cached is
decided at the start, so none is evicted and decoded again; the others are decoded frame by frame.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import numpy as np

from vla_datasets.dataset import Dataset
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.videos import Clip, OpenVideos, frame_count

OPEN_VIDEOS = 256  # per process
FRAMES_PER_READ = 32  # frames that are decoded into one array
EMPTY, DECODING, READY = 0, 1, 2  # states of a video's slot


class Frames:
    """Images of the features `keys`, all uint8 [3, height, width]."""

    def __init__(self, dataset: Dataset, keys: Sequence[str], image_hw: tuple[int, int]):
        self.dataset, self.keys, self.videos = dataset, tuple(keys), OpenVideos(OPEN_VIDEOS)
        self.shape = (3, *image_hw)
        self._buffers: dict[tuple[int, str], tuple[int, np.ndarray]] = {}
        self._states = np.zeros(0, np.uint8)

    @property
    def bytes(self) -> int:
        return sum(episode.length for episode in self.dataset.episodes) * len(self.keys) * int(np.prod(self.shape))

    def keep(self, limit: int) -> int:
        """Reserve at most `limit` bytes for decoded videos, before reader processes start; return the bytes reserved.

        The first request for a frame decodes its entire video: in order, that costs hardly more than one frame.
        """
        slots, size = [], 0
        for episode in self.dataset.episodes:
            needed = episode.length * int(np.prod(self.shape))
            for key in self.keys:
                if needed and size + needed <= limit:
                    slots.append(((episode.index, key), size, episode.length))
                    size += needed
        if slots:
            memory = mmap.mmap(-1, size)
            self._states = np.frombuffer(mmap.mmap(-1, len(slots)), np.uint8)
            self._buffers = {
                video: (number, np.ndarray((length, *self.shape), np.uint8, memory, start))
                for number, (video, start, length) in enumerate(slots)
            }
        return size

    def at(self, episode: int, step: int) -> list[np.ndarray]:
        """Return read-only uint8 [3, H, W] for each feature. Raises DatasetError if a video has no such frame."""
        return [self._frame(episode, key, step) for key in self.keys]

    def require(self) -> None:
        """Raise ValueError for a video that is missing or has fewer frames than its episode has steps."""
        for episode in (episode for episode in self.dataset.episodes if episode.length):
            for clip in (self._clip(episode.index, key) for key in self.keys):
                # v3.0 sets are checked when opened
                if clip and clip.length is None and (count := frame_count(clip.path)) < episode.length:
                    raise ValueError(f"{clip.path} has {count} frames; its episode has {episode.length} steps")

    def _clip(self, episode: int, key: str) -> Clip | None:
        """Return the video of a feature; None if its images are stored one by one."""
        is_video = self.dataset.features[key]["dtype"] == "video"
        return self.dataset.clip(episode, key) if is_video and isinstance(self.dataset, LeRobotDataset) else None

    def _frame(self, episode: int, key: str, step: int) -> np.ndarray:
        number, buffer = self._buffers.get((episode, key), (0, None))
        state = DECODING if buffer is None else self._states[number]  # read once: another process may change it
        if state == DECODING:
            return self._read(episode, key, [step])[0]
        if state == EMPTY:
            self._states[number] = DECODING  # if two processes decode it, both write the same
            for start in range(0, len(buffer), FRAMES_PER_READ):
                steps = range(start, min(start + FRAMES_PER_READ, len(buffer)))
                buffer[steps.start : steps.stop] = self._read(episode, key, steps)
            self._states[number] = READY
        return buffer[step]

    def _read(self, episode: int, key: str, steps: Sequence[int]) -> np.ndarray:
        clip = self._clip(episode, key)
        frames = self.videos.frames(clip, steps) if clip else self.dataset.frames(episode, key, steps)
        return frames.transpose(0, 3, 1, 2)
