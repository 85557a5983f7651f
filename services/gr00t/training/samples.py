"""Training samples: (episode, step) to what the network takes, the same in any process and at any time.

Rows are read once, when training begins; films are decoded once where memory has room (`frames`). What is drawn for a
sample (order, crop, colours, noise, the flow's time) follows from seed and place in the run alone, so a run that goes
on needs no state of a generator, and several processes see what one would.

Source: Isaac-GR00T at 4af2b622, gr00t/data/dataset.py and gr00t/data/transform/video.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from services.gr00t.processing.numbers import Channel
from services.gr00t.processing.prompt import Prompts
from services.gr00t.training import colours
from services.gr00t.training.frames import Frames
from services.gr00t.training.robot import KINDS, Robot, column_of, language_column, video_key
from vla_datasets import marks
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.statistics import as_rows

TIME = 0.999  # the flow's time is (TIME - x) / TIME, x of a Beta(1.5, 1) distribution


@dataclass(frozen=True)
class Episode:
    """An episode's numbers as the network takes them.

    states float32 [T, n]; actions float32 [T + horizon - 1, m], behind the end as upstream pads; prompts: of each step.
    """

    index: int
    states: np.ndarray
    actions: np.ndarray
    prompts: Sequence[str]


@dataclass(frozen=True)
class Batch:
    """B samples. pictures uint8 [B, V, S, S, 3]; ids [B, T] and their lengths [B]; state [B, 64]; actions and noise
    [B, H, 32]; times [B]."""

    pictures: Tensor
    ids: Tensor
    lengths: Tensor
    state: Tensor
    actions: Tensor
    noise: Tensor
    times: Tensor

    def to(self, device: torch.device) -> tuple[Tensor, ...]:
        """Returns the tensors there, in their order."""
        return tuple(var.to(device, non_blocking=True) for var in vars(self).values())


def read_episodes(dataset: LeRobotDataset, robot: Robot, horizon: int) -> list[Episode]:
    """Returns every episode's numbers. Raises ValueError naming what training could not use."""
    found = [
        _episode(dataset, robot, episode.index, episode.length, horizon)
        for episode in dataset.episodes
        if episode.length
    ]
    if not found:
        raise ValueError(f"data set {dataset.name} has no episode with a step; record one, or name another")
    return found


def _episode(dataset: LeRobotDataset, robot: Robot, index: int, length: int, horizon: int) -> Episode:
    columns = dataset.columns(index)
    where = f"episode {index} of {dataset.name}"
    rows = {key: len(values) for key, values in columns.items()}
    if set(rows.values()) != {length}:
        raise ValueError(
            f"{where} has {min(rows.values())} rows; episodes.jsonl says {length}: make the data set again, mend "
            f"that line, or leave it out: ./lab dataset {shlex.quote(str(dataset.directory))} --bad {index}"
        )
    states = [part.encode(_values(dataset, columns, "state", part, where)) for part in robot.layout.state]
    absolute = robot.metadata["modalities"]["action"]
    actions = [
        _padded(part, _values(dataset, columns, "action", part, where), absolute[part.name]["absolute"], horizon)
        for part in robot.layout.action
    ]
    return Episode(
        index,
        np.concatenate(states, -1, dtype=np.float32) if states else np.zeros((length, 0), np.float32),
        np.concatenate(actions, -1, dtype=np.float32),
        _instructions(dataset, columns, robot, where),
    )


def _values(dataset: LeRobotDataset, columns: dict, kind: str, part: Channel, where: str) -> np.ndarray:
    """Returns a part's numbers float64 [T, n], computed in as upstream does. Raises ValueError for unusable ones."""
    column, place = column_of(dataset, kind, part.name)
    if column not in columns:
        raise ValueError(f"{where} has no column {column}; info.json promises it")
    values = as_rows(columns[column])[:, place].astype(np.float64)
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values).all(-1))[0])
        raise ValueError(
            f"{where}, row {row}: {kind} {part.name!r} is not finite; mend the row or leave the episode out"
        )
    return values


def _padded(part: Channel, values: np.ndarray, absolute: bool, horizon: int) -> np.ndarray:
    """Returns encoded actions with `horizon` - 1 behind the end: the last one, or zeros where they are no targets."""
    after = values[-1:] if absolute else np.zeros_like(values[:1])
    return part.encode(np.concatenate((values, np.repeat(after, horizon - 1, axis=0))))


def _instructions(dataset: LeRobotDataset, columns: dict, robot: Robot, where: str) -> list[str]:
    column = language_column(dataset, robot.embodiment.language)
    numbers = columns.get(column)
    if numbers is None:
        raise ValueError(f"{where} has no column {column}, which says what was asked for")
    unknown = {int(number) for number in numbers.reshape(-1)} - dataset.tasks.keys()
    if unknown:
        raise ValueError(f"{where}: {column} is {min(unknown)}, which tasks.jsonl does not have")
    return [dataset.tasks[int(number)] for number in numbers.reshape(-1)]


class Samples(Dataset):
    """Every step of a data set, in the order of a run: place 0 is the first sample of the first step."""

    def __init__(self, dataset: LeRobotDataset, robot: Robot, prompts: Prompts, head: object, side: int, seed: int):
        self.dataset, self.robot, self.prompts, self.head, self.seed = dataset, robot, prompts, head, seed
        self.episodes = read_episodes(dataset, robot, head.horizon)
        empty = (episode.index for episode in self.episodes if not all(text.strip() for text in set(episode.prompts)))
        marks.require_instructions(dataset, empty)
        parts = [(kind, part.name) for kind in KINDS for part in getattr(robot.layout, kind)]
        self.notes = dataset.require_current_statistics({column_of(dataset, *part)[0] for part in parts})
        for text in {text for episode in self.episodes for text in episode.prompts}:
            prompts.ids(text)  # refuses what cannot stand in a prompt
        self.ends = np.cumsum([len(episode.states) for episode in self.episodes])
        keys = [video_key(dataset, name) for name in robot.embodiment.cameras.values()]
        self.frames, self.side = Frames(dataset, keys, robot.layout.image_hw), side
        self.frames.require()

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, place: int) -> tuple:
        """Returns pictures, ids, state, actions, noise and time of the sample at a place of the run."""
        draw = np.random.default_rng([self.seed, place])
        number = order(len(self), self.seed, place // len(self))[place % len(self)]
        at = int(np.searchsorted(self.ends, number, side="right"))
        episode, step = self.episodes[at], int(number - (self.ends[at - 1] if at else 0))
        images = colours.changed(self.frames.at(episode.index, step), self.side, int(draw.integers(2**63)))
        state = _wide(episode.states[step], self.head.state_dim)
        actions = _wide(episode.actions[step : step + self.head.horizon], self.head.action_dim)
        noise = draw.standard_normal(actions.shape, np.float32)
        time = (TIME - draw.beta(1.5, 1.0)) / TIME
        return images, self.prompts.ids(episode.prompts[step]), state, actions, noise, np.float32(time)


@lru_cache(maxsize=2)
def order(count: int, seed: int, epoch: int) -> np.ndarray:
    """Returns an epoch's order of the samples."""
    return np.random.default_rng([seed, 2**32 + epoch]).permutation(count)


def _wide(values: np.ndarray, width: int) -> np.ndarray:
    return np.pad(values, [*[(0, 0)] * (values.ndim - 1), (0, width - values.shape[-1])])


def collate(rows: Sequence[tuple]) -> Batch:
    """Returns samples as a batch, prompts padded on the right."""
    images, prompts, *numbers = zip(*rows, strict=True)
    lengths = torch.tensor([len(ids) for ids in prompts])
    ids = torch.zeros((len(rows), int(lengths.max())), dtype=torch.int64)
    for row, one in enumerate(prompts):
        ids[row, : len(one)] = torch.tensor(one)
    return Batch(torch.stack(images), ids, lengths, *(torch.from_numpy(np.stack(number)) for number in numbers))


@dataclass(frozen=True)
class Places:
    """The places that one of `world` processes takes in each step, from `first` to `last`."""

    first: int
    last: int
    batch: int
    rank: int = 0
    world: int = 1

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self.first, self.last):
            start = (step * self.world + self.rank) * self.batch
            yield list(range(start, start + self.batch))

    def __len__(self) -> int:
        return self.last - self.first


def loader(samples: Samples, places: Places, workers: int) -> DataLoader:
    """Returns the batches of a run."""
    return DataLoader(samples, batch_sampler=places, collate_fn=collate, num_workers=workers, pin_memory=workers > 0)
