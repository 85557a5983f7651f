"""Demonstrations as the trainer takes them: a data set's pictures made small, its numbers normalized, all in memory."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from services.minivla import robots
from services.minivla.config import Config
from services.minivla.robots import LIBERO, Robot
from services.ws_mdl.frames import OnEpisode, images_of
from services.ws_mdl.transformer.tokenization import train_tokenizer
from vla_contract.protocol.parts import Part, total
from vla_datasets import libero, marks
from vla_datasets.errors import DatasetError
from vla_datasets.opening import find, open_dataset

SHOWN = {"both": (0, 1), "front": (0,), "wrist": (1,)}  # of a set's first two cameras; both: as many as there are


@dataclass(frozen=True)
class Scaling:
    """Numbers to about [-1, 1] and back: (x - offset) / scale. Numbers that never change become 0."""

    offset: tuple[float, ...]
    scale: tuple[float, ...]

    def __call__(self, x: Tensor) -> Tensor:
        return (x - torch.tensor(self.offset)) / torch.tensor(self.scale)

    def undo(self, x: Tensor) -> Tensor:
        """Returns what `self` was called with."""
        return x * torch.tensor(self.scale) + torch.tensor(self.offset)

    @classmethod
    def of_range(cls, x: np.ndarray) -> Scaling:
        """Returns the one that takes [n, k] to [-1, 1] exactly."""
        low, high = x.min(0), x.max(0)
        half = np.where(high > low, (high - low) / 2, 1.0)
        return cls(tuple(((high + low) / 2).tolist()), tuple(half.tolist()))

    @classmethod
    def of_spread(cls, x: np.ndarray) -> Scaling:
        """Returns the one that gives [n, k] mean 0 and standard deviation 1."""
        std = x.std(0)
        return cls(tuple(x.mean(0).tolist()), tuple(np.where(std > 1e-6, std, 1.0).tolist()))


@dataclass(frozen=True)
class Learned:
    """What a policy has to know of its data beside the weights; it is kept in the weights file."""

    data: str  # the set's name
    digest: str  # of its numbers and instructions
    demonstrations: int
    source: str  # what the set says of where it comes from
    cameras: tuple[str, ...]
    action: Scaling
    state: Scaling
    tokenizer: str  # JSON
    left_out: int = 0  # episodes that were marked as bad
    marks: str = ""  # digest of which
    action_parts: tuple[Part, ...] = LIBERO.action  # what the numbers are; older weights files are all of LIBERO's
    state_parts: tuple[Part, ...] = LIBERO.state

    def stored(self) -> dict[str, Any]:
        """Returns plain values for a weights file."""
        return asdict(self)

    @classmethod
    def of(cls, stored: dict[str, Any]) -> Learned:
        """Returns what `stored` was made of."""
        scalings = {name: Scaling(**{k: tuple(v) for k, v in stored[name].items()}) for name in ("action", "state")}
        kinds = ("action_parts", "state_parts")
        parts = {name: tuple(Part(**one) for one in stored[name]) for name in kinds if name in stored}
        return cls(**{**stored, **scalings, **parts, "cameras": tuple(stored["cameras"])})


@dataclass
class Demonstrations:
    """All steps of all episodes, one after the other: N steps, C cameras, E instructions of at most L words."""

    learned: Learned
    pictures: Tensor  # uint8 [N, C, 3, side, side]
    state: Tensor  # float32 [N, S], normalized; LIBERO's have 8 numbers
    action: Tensor  # float32 [N, A], normalized; 7
    words: Tensor  # int64 [E, L], padded
    task: Tensor  # int64 [N]: the row of words
    ends: Tensor  # int64 [N]: the step after the last of the episode
    pad: int = field(default=1)
    left_out: str = ""  # episodes that nothing is learned from, in words

    def __len__(self) -> int:
        return len(self.action)

    def chunks(self, index: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Returns the actions [B, length, A] from those steps on, and which of them [B, length] were demonstrated.

        Beyond an episode's end its last action is repeated, which nothing is learned from.
        """
        places = index[:, None] + torch.arange(length)
        last = self.ends[index][:, None] - 1
        return self.action[places.minimum(last)], places <= last


def load(config: Config, on_episode: OnEpisode = lambda done, total: None) -> Demonstrations:
    """Returns a data set. Raises DatasetError for one of a robot that nothing is known of, or that lacks a camera."""
    found = open_dataset(find(config.data))
    bad = marks.leave_out(found)
    marks.require_instructions(found)
    robot = robots.of(found)
    cameras = refuse_others(found, robot, config)
    keys = [robot.cameras[camera] for camera in cameras]
    episodes = chosen(found.episodes, config.episodes)
    columns, task, ends = [], [], []
    texts = list(dict.fromkeys(episode.tasks[0] for episode in episodes))
    for one in episodes:
        rows = found.columns(one.index)
        if {len(rows[libero.STATE]), len(rows[libero.ACTION])} != {one.length}:
            raise DatasetError(f"{found.name}, episode {one.index} has not as many rows as its set says")
        columns.append((rows[libero.STATE], rows[libero.ACTION]))
        task += [texts.index(one.tasks[0])] * one.length
        ends += [len(ends) + one.length] * one.length
    state, action = (np.concatenate(part).astype(np.float32) for part in zip(*columns, strict=True))
    images = images_of(found, episodes, keys, config.side, on_episode)
    tokenizer = train_tokenizer((text.lower() for text in texts), "word", 1, 8000)
    learned = Learned(
        data=found.name,
        digest=digest(state, action, texts),
        demonstrations=len(episodes),
        source=whose(found.source or {}, [episode.index for episode in episodes])
        or str(found.info.get("robot_type", "")),
        cameras=cameras,
        action=Scaling.of_range(action),
        state=Scaling.of_spread(state),
        tokenizer=tokenizer.to_str(),
        left_out=len(bad.bad),
        marks=bad.digest,
        action_parts=robot.action,
        state_parts=robot.state,
    )
    return Demonstrations(
        learned, images, learned.state(torch.from_numpy(state)), learned.action(torch.from_numpy(action)),
        encode(tokenizer, texts), torch.tensor(task), torch.tensor(ends), tokenizer.token_to_id("[PAD]"),
        bad.left_out,
    )  # fmt: skip


def refuse_others(found: Any, robot: Robot, config: Config) -> tuple[str, ...]:
    """Returns the cameras to learn from. Raises DatasetError where rate, numbers or pictures are not the robot's."""
    if found.fps != robot.rate_hz:
        rate = f"mini-VLA learns from {robot.name}'s {robot.rate_hz:g}"
        raise DatasetError(f"{found.name} has {found.fps:g} steps a second; {rate}")
    for key, size in ((libero.STATE, total(robot.state)), (libero.ACTION, total(robot.action))):
        shape = found.features.get(key, {}).get("shape")
        if shape is None or list(shape) != [size]:
            raise DatasetError(f"{found.name}: {key} is {shape or 'missing'}; expected {robot.name}'s [{size}] numbers")
    there, places = tuple(robot.cameras), SHOWN[config.cameras]
    if config.cameras == "wrist" and len(there) < 2:
        raise DatasetError(f"{found.name} has no second camera; it has {', '.join(there)}: --set cameras=front")
    cameras = tuple(there[place] for place in places if place < len(there))
    for key in (robot.cameras[camera] for camera in cameras):
        if key not in found.video_keys:
            raise DatasetError(f"{found.name} has no pictures {key}; it has {', '.join(found.video_keys) or 'none'}")
    return cameras


def whose(source: dict[str, Any], numbers: list[int]) -> str:
    """Returns who demonstrated what in those episodes of a set that the lab made, from which starts; "" else."""
    if not {"policy", "suite", "starts", "noise", "episodes"} <= source.keys():
        return ""
    seeds = [source["episodes"][number]["seed"] for number in numbers]
    words = [f"{source['policy']} on {source['suite']}", f"starts {source['starts']}"]
    words += [f"seeds {min(seeds)} to {max(seeds)}"] if source["starts"] == "drawn" else []
    words += [f"noise {source['noise']:g}"] if source["noise"] else []
    words += [f"assets {source['assets']['kind']}"] if source.get("assets") else []
    return ", ".join(words)


def chosen(episodes: list[Any], count: int) -> list[Any]:
    """Returns `count` episodes (0: all), as many of each task, the first ones."""
    if not count:
        return episodes
    by_task: dict[str, list[Any]] = {}
    for one in episodes:
        by_task.setdefault(one.tasks[0], []).append(one)
    if count > len(episodes):
        raise DatasetError(f"{count} episodes were asked for; the data set has {len(episodes)}")
    depth = max(map(len, by_task.values()))
    turns = [of[place] for place in range(depth) for of in by_task.values() if place < len(of)]
    return sorted(turns[:count], key=lambda one: one.index)


def encode(tokenizer: Tokenizer, texts: list[str]) -> Tensor:
    """Returns word ids int64 [n, L], padded to the longest."""
    ids = [tokenizer.encode(text.lower()).ids for text in texts]
    length, pad = max(1, *map(len, ids)), tokenizer.token_to_id("[PAD]")
    return torch.tensor([row + [pad] * (length - len(row)) for row in ids])


def digest(state: np.ndarray, action: np.ndarray, texts: list[str]) -> str:
    """Returns 16 hex digits that change with what is learned from, pictures aside."""
    parts = (state.tobytes(), action.tobytes(), "\n".join(texts).encode())
    return hashlib.sha256(b"|".join(parts)).hexdigest()[:16]


def as_input(images: Tensor) -> Tensor:
    """Returns uint8 pictures as the network sees them: float32 in [-1, 1]."""
    return images.float() / 127.5 - 1


def augmented(images: Tensor, generator: torch.Generator) -> Tensor:
    """Returns uint8 [B, C, 3, s, s] shifted by up to a 32nd of its edge and brighter or darker, as float32 in [-1, 1].

    A camera's shift stands for a hand and objects that lie a little differently.
    """
    b, c, _, side, _ = images.shape
    far = max(1, side // 32)
    shift = torch.randint(-far, far + 1, (2, b * c, 1), generator=generator)
    rows, columns = (torch.arange(side) + shift).clamp(0, side - 1)  # each (B C, side)
    flat = images.flatten(0, 1)
    which = torch.arange(b * c)[:, None, None, None]
    colours = torch.arange(3)[None, :, None, None]
    moved = flat[which, colours, rows[:, None, :, None], columns[:, None, None, :]].unflatten(0, (b, c))
    light = 1 + 0.2 * (torch.rand((b, 1, 1, 1, 1), generator=generator) * 2 - 1)
    return (as_input(moved) * light).clamp(-1, 1)
