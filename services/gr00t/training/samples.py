"""Training samples: (episode, step) to network inputs, the same in any process and at any time.

Rows are read once, when training starts; videos are decoded once if memory suffices (`frames`). The randomness of a
sample (order, crop, colours, noise, the flow's time) depends on the seed and its index in the run alone: a resumed run
needs no generator state, and several processes draw the same samples as one.

Source: Isaac-GR00T at 4af2b622, gr00t/data/dataset.py and gr00t/data/transform/video.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from services.gr00t.data.needs import column_of
from services.gr00t.processing.numbers import Channel
from services.gr00t.processing.prompt import Prompts
from services.gr00t.training import colours
from services.gr00t.training.robot import KINDS, TrainingRobot, language_column, video_key
from vla_datasets import marks
from vla_datasets.frames import Frames
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.statistics import as_rows
from vla_modelkit.training.trainer import order

TIME = 0.999  # the flow's time is (TIME - x) / TIME, x of a Beta(1.5, 1) distribution


@dataclass(frozen=True)
class TrainingEpisode:
    """An episode's numbers in the network's units."""

    index: int
    states: np.ndarray  # float32 [T, n]
    actions: np.ndarray  # float32 [T + horizon - 1, m], padded as upstream does
    prompts: Sequence[str]  # of each step


class Batch(NamedTuple):
    """B samples. images uint8 [B, V, S, S, 3]; ids [B, T] and their lengths [B]; state [B, 64]; actions and noise
    [B, H, 32]; times [B]."""

    pictures: Tensor
    ids: Tensor
    lengths: Tensor
    state: Tensor
    actions: Tensor
    noise: Tensor
    times: Tensor


def _episode(dataset: LeRobotDataset, robot: TrainingRobot, index: int, length: int, horizon: int) -> TrainingEpisode:
    columns = dataset.columns(index)
    label = f"episode {index} of {dataset.name}"
    rows = {key: len(values) for key, values in columns.items()}
    if set(rows.values()) != {length}:
        raise ValueError(
            f"{label} has {min(rows.values())} rows; {dataset.episodes_name} says {length}: create the data set again, "
            f"correct that line, or exclude it: ./lab dataset {shlex.quote(str(dataset.directory))} --bad {index}"
        )
    states = [part.encode(_values(dataset, columns, "state", part, label)) for part in robot.layout.state]
    absolute = robot.metadata["modalities"]["action"]
    actions = []
    for part in robot.layout.action:  # padded with the last one, or with zeros for relative actions
        values = _values(dataset, columns, "action", part, label)
        after = values[-1:] if absolute[part.name]["absolute"] else np.zeros_like(values[:1])
        actions.append(part.encode(np.concatenate((values, np.repeat(after, horizon - 1, axis=0)))))
    column = language_column(dataset, robot.embodiment.language)
    numbers = columns.get(column)
    if numbers is None:
        raise ValueError(f"{label} has no column {column}, which has the instruction")
    if unknown := {int(number) for number in numbers.reshape(-1)} - dataset.tasks.keys():
        raise ValueError(f"{label}: {column} is {min(unknown)}, which {dataset.tasks_name} does not have")
    return TrainingEpisode(
        index,
        np.concatenate(states, -1, dtype=np.float32) if states else np.zeros((length, 0), np.float32),
        np.concatenate(actions, -1, dtype=np.float32),
        [dataset.tasks[int(number)] for number in numbers.reshape(-1)],
    )


def _values(dataset: LeRobotDataset, columns: dict, kind: str, part: Channel, label: str) -> np.ndarray:
    """Return a part's numbers, float64 [T, n] as in upstream. Raises ValueError for missing or non-finite ones."""
    column, span = column_of(dataset, kind, part.name)
    if column not in columns:
        raise ValueError(f"{label} has no column {column}, which info.json lists")
    values = as_rows(columns[column])[:, span].astype(np.float64)
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values).all(-1))[0])
        raise ValueError(
            f"{label}, row {row}: {kind} {part.name!r} is not finite; correct the row or exclude the episode"
        )
    return values


class Samples(Dataset):
    """Every step of a data set, in the order of a run: index 0 is the first sample of the first step."""

    def __init__(
        self, dataset: LeRobotDataset, robot: TrainingRobot, prompts: Prompts, head: object, side: int, seed: int
    ):
        self.dataset, self.robot, self.prompts, self.head, self.seed = dataset, robot, prompts, head, seed
        self.episodes = [
            _episode(dataset, robot, episode.index, episode.length, head.horizon)
            for episode in dataset.episodes
            if episode.length
        ]
        if not self.episodes:
            raise ValueError(f"data set {dataset.name} has no episode with a step; record one, or choose another")
        empty = (episode.index for episode in self.episodes if not all(text.strip() for text in set(episode.prompts)))
        marks.require_instructions(dataset, empty)
        parts = [(kind, part.name) for kind in KINDS for part in getattr(robot.layout, kind)]
        self.notes = dataset.require_current_statistics({column_of(dataset, *part)[0] for part in parts})
        for text in {text for episode in self.episodes for text in episode.prompts}:
            prompts.ids(text)  # raises for text that a prompt cannot contain
        self.ends = np.cumsum([len(episode.states) for episode in self.episodes])
        keys = [video_key(dataset, name) for name in robot.embodiment.cameras.values()]
        self.frames, self.side = Frames(dataset, keys, robot.layout.image_hw), side
        self.frames.require()

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: int) -> tuple:
        """Return images, ids, state, actions, noise and time of the sample at an index of the run."""
        draw = np.random.default_rng([self.seed, index])
        number = order(len(self), self.seed, index // len(self))[index % len(self)]
        at = int(np.searchsorted(self.ends, number, side="right"))
        episode, step = self.episodes[at], int(number - (self.ends[at - 1] if at else 0))
        images = colours.changed(self.frames.at(episode.index, step), self.side, int(draw.integers(2**63)))
        state = _wide(episode.states[step], self.head.state_dim)
        actions = _wide(episode.actions[step : step + self.head.horizon], self.head.action_dim)
        noise = draw.standard_normal(actions.shape, np.float32)
        time = (TIME - draw.beta(1.5, 1.0)) / TIME
        return images, self.prompts.ids(episode.prompts[step]), state, actions, noise, np.float32(time)


def _wide(values: np.ndarray, width: int) -> np.ndarray:
    return np.pad(values, [*[(0, 0)] * (values.ndim - 1), (0, width - values.shape[-1])])


def collate(rows: Sequence[tuple]) -> Batch:
    """Return samples as a batch, prompts padded on the right."""
    images, prompts, *numbers = zip(*rows, strict=True)
    lengths = torch.tensor([len(ids) for ids in prompts])
    ids = torch.zeros((len(rows), int(lengths.max())), dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(prompt)
    return Batch(torch.stack(images), ids, lengths, *(torch.from_numpy(np.stack(number)) for number in numbers))
