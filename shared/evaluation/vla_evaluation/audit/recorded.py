"""A recording of the lab as a data set, whose frames are drawn only where they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from vla_datasets import statistics
from vla_datasets.dataset import Dataset
from vla_datasets.metadata import ACTION, STATE, Episode, features
from vla_evaluation.recording import Demonstrations

SIZE = 256  # pixels of the drawn frames, as in published data sets


class RecordedEpisodes(Dataset):
    """Made of a directory of `./lab record`. cameras: the benchmark's camera → its video, turned by 180° as there."""

    modality = None

    def __init__(self, directory: Path, cameras: Mapping[str, str]):
        self.directory, self._recording = directory, Demonstrations(directory)
        demonstrations = self._recording.episodes
        if not demonstrations:
            raise ValueError(f"recording {directory.name} has no demonstration yet; repeat ./lab record, or remove it")
        self._cameras = {video: camera for camera, video in cameras.items() if camera in self._recording.cameras}
        names = {
            key: [part.name for part in parts for _ in range(part.size)]
            for key, parts in ((STATE, self._recording.state), (ACTION, self._recording.action))
        }
        self.info = {"fps": self._recording.rate_hz, "features": features(self._cameras, SIZE, names)}
        self.episodes = [Episode(i, (demo.instruction,), demo.steps) for i, demo in enumerate(demonstrations)]
        self.tasks = dict(self._recording.tasks)
        self.source = {
            "assets": {"kind": demonstrations[0].source.assets.kind},
            "episodes": [{"task": demo.task, "episode": demo.episode} for demo in demonstrations],
        }

    def columns(self, episode_index: int) -> dict[str, np.ndarray]:
        demo = self._recording.episodes[episode_index]
        return {STATE: demo.states, ACTION: demo.actions}

    def frames(self, episode_index: int, video_key: str, indices: Sequence[int] | None = None) -> np.ndarray:
        frames = self._recording.episodes[episode_index].frames(self._cameras[video_key], SIZE, indices)
        return np.ascontiguousarray(frames[:, ::-1, ::-1])

    def images_path(self, episode_index: int, video_key: str) -> Path:
        return self._recording.episodes[episode_index].path

    def statistics(self) -> statistics.Statistics:
        return statistics.of_episodes(self.columns(episode.index) for episode in self.episodes)
