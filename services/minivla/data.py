"""Demonstrations for training: downscaled images, normalized states and actions, all in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from services.minivla.config import Config
from services.minivla.model import XYZ
from services.ws_mdl.frames import OnEpisode, images_of, small
from services.ws_mdl.transformer.tokenization import train_tokenizer
from vla_contract.protocol.parts import GRIPPER_OPENS, HAND_STATE, OSC_POSE, Part, total
from vla_datasets import libero, marks, scenes
from vla_datasets.errors import DatasetError
from vla_datasets.loader import find, open_dataset

REMAKE = "make the data set again: ./lab dataset RECORDING --format lerobot --scenes 60"
MUFFLED, ADDED = 0.4, 4  # share of a word that every instruction has, and words, that `muffled` changes and adds
CAMERA_INDICES = {"both": (0, 1), "front": (0,), "wrist": (1,)}  # "both" uses one camera if the data set has only one


@dataclass(frozen=True)
class MinivlaRobot:
    """Conventions of a data set's robot."""

    name: str
    rate_hz: float
    action: tuple[Part, ...]
    state: tuple[Part, ...]
    cameras: Mapping[str, str]  # name in the simulator → video key of the data set, in order of use for training


_LIBERO_CAMERAS = {camera: libero.video_key(camera) for camera in libero.CAMERAS}
LIBERO = MinivlaRobot("LIBERO", libero.FPS, (*OSC_POSE, GRIPPER_OPENS), HAND_STATE, _LIBERO_CAMERAS)


def robot_of(dataset: Any) -> MinivlaRobot:
    """Return the robot of a data set.

    Data sets that the lab made on other benchmarks describe it in meta/source.json; all others are LIBERO's. Raises
    DatasetError if that description is incomplete.
    """
    source = dataset.source or {}
    if source.get("benchmark", LIBERO.name) == LIBERO.name:
        return LIBERO
    try:
        action, state = (tuple(Part(**part) for part in source[name]) for name in ("action", "state"))
        cameras = {camera: key for key, camera in source["cameras"].items()}
        return MinivlaRobot(str(source["benchmark"]), float(source["rate_hz"]), action, state, cameras)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"meta/source.json has no valid description of the robot ({error})"
        raise DatasetError(f"{dataset.name}: {problem}") from error


@dataclass(frozen=True)
class Scaling:
    """Normalization to about [-1, 1]: (x - offset) / scale. Constant dimensions become 0."""

    offset: tuple[float, ...]
    scale: tuple[float, ...]

    def __call__(self, x: Tensor) -> Tensor:
        return (x - torch.tensor(self.offset)) / torch.tensor(self.scale)

    def undo(self, x: Tensor) -> Tensor:
        return x * torch.tensor(self.scale) + torch.tensor(self.offset)

    @classmethod
    def of_range(cls, x: np.ndarray) -> Scaling:
        """Return the scaling that maps the range of x [n, k] to [-1, 1]."""
        low, high = x.min(0), x.max(0)
        half = np.where(high > low, (high - low) / 2, 1.0)
        return cls(tuple(((high + low) / 2).tolist()), tuple(half.tolist()))

    @classmethod
    def of_spread(cls, x: np.ndarray) -> Scaling:
        """Return the scaling that gives x [n, k] mean 0 and standard deviation 1."""
        std = x.std(0)
        return cls(tuple(x.mean(0).tolist()), tuple(np.where(std > 1e-6, std, 1.0).tolist()))


@dataclass(frozen=True)
class DatasetStats:
    """What a policy needs to know about its training data; stored in the weights file."""

    data: str  # the data set's name
    digest: str  # of its states, actions and instructions
    demonstrations: int
    source: str  # as the data set describes it
    cameras: tuple[str, ...]
    action: Scaling
    state: Scaling
    tokenizer: str  # JSON
    left_out: int = 0  # episodes marked as bad
    marks: str = ""  # digest of the marks
    action_parts: tuple[Part, ...] = LIBERO.action  # older weights files lack it: LIBERO's
    state_parts: tuple[Part, ...] = LIBERO.state

    def stored(self) -> dict[str, Any]:
        """Return plain values for the weights file."""
        return asdict(self)

    @classmethod
    def of(cls, stored: dict[str, Any]) -> DatasetStats:
        """Invert `stored`."""
        scalings = {name: Scaling(**{k: tuple(v) for k, v in stored[name].items()}) for name in ("action", "state")}
        kinds = ("action_parts", "state_parts")
        parts = {name: tuple(Part(**part) for part in stored[name]) for name in kinds if name in stored}
        return cls(**{**stored, **scalings, **parts, "cameras": tuple(stored["cameras"])})


@dataclass
class Scenes:
    """Free labels: M scenes, and where the things are that their instructions name (vla_datasets/scenes.py).

    steps: the places at the N steps of the episodes that they were made from.

    places are in the units of the normalized state; pixels are x to the right and y down in [-1, 1], NaN outside.
    """

    images: Tensor  # uint8 [M, C, 3, side, side]
    state: Tensor  # float32 [M, S], normalized
    places: Tensor  # float32 [M, things, 3]
    pixels: Tensor  # float32 [M, C, things, 2]
    task: Tensor  # int64 [M]: row of `TrainingSteps.instructions`
    steps: Tensor  # float32 [N, things, 3]

    def __len__(self) -> int:
        return len(self.state)


@dataclass
class TrainingSteps:
    """The steps of all episodes, concatenated: N steps, C cameras, E instructions of at most L tokens."""

    learned: DatasetStats
    images: Tensor  # uint8 [N, C, 3, side, side]
    state: Tensor  # float32 [N, S], normalized; S = 8 for LIBERO
    action: Tensor  # float32 [N, A], normalized; A = 7 for LIBERO
    instructions: Tensor  # int64 [E, L]: token ids, padded
    task: Tensor  # int64 [N]: row of `instructions`
    ends: Tensor  # int64 [N]: end of the step's episode, exclusive
    pad: int = field(default=1)
    common: Tensor = field(default_factory=lambda: torch.zeros(0))  # [V]: share of the instructions with a word
    left_out: str = ""  # message about excluded episodes
    scenes: Scenes | None = None  # None: the data set has none; else `images` have no camera

    def __len__(self) -> int:
        return len(self.action)

    def chunks(self, index: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Return action chunks [B, length, A] that start at steps `index`, and a mask [B, length] of real actions.

        Past an episode's end the last action is repeated; the mask excludes it from the loss.
        """
        steps = index[:, None] + torch.arange(length)
        last = self.ends[index][:, None] - 1
        return self.action[steps.minimum(last)], steps <= last


def load(config: Config, on_episode: OnEpisode = lambda done, total: None) -> TrainingSteps:
    """Load a data set. Raises DatasetError for an unknown robot or a missing camera."""
    dataset = open_dataset(find(config.data))
    bad = marks.leave_out(dataset)
    marks.require_instructions(dataset)
    robot = robot_of(dataset)
    cameras = select_cameras(dataset, robot, config)
    keys = [robot.cameras[camera] for camera in cameras]
    episodes = select_episodes(dataset.episodes, config.episodes)
    columns, task = [], []
    ends: list[int] = []
    texts = list(dict.fromkeys(episode.tasks[0] for episode in episodes))
    for episode in episodes:
        rows = dataset.columns(episode.index)
        if {len(rows[libero.STATE]), len(rows[libero.ACTION])} != {episode.length}:
            raise DatasetError(
                f"{dataset.name}, episode {episode.index}: {len(rows[libero.ACTION])} rows; expected {episode.length}"
            )
        columns.append((rows[libero.STATE], rows[libero.ACTION]))
        task += [texts.index(episode.tasks[0])] * episode.length
        ends += [len(ends) + episode.length] * episode.length
    state, action = (np.concatenate(part).astype(np.float32) for part in zip(*columns, strict=True))
    images = torch.zeros((len(state), 0, 3, config.side, config.side), dtype=torch.uint8)  # of no camera
    sees = learns_from_scenes(dataset, config)
    if config.pictures and not sees:
        images = images_of(dataset, episodes, keys, config.side, on_episode)
    tokenizer = train_tokenizer((text.lower() for text in texts), "word", 1, 8000)
    learned = DatasetStats(
        data=dataset.name,
        digest=digest(state, action, texts),
        demonstrations=len(episodes),
        source=describe_source(dataset.source or {}, [episode.index for episode in episodes])
        or str(dataset.info.get("robot_type", "")),
        cameras=cameras,
        action=Scaling.of_range(action),
        state=Scaling.of_spread(state),
        tokenizer=tokenizer.to_str(),
        left_out=len(bad.bad),
        marks=bad.digest,
        action_parts=robot.action,
        state_parts=robot.state,
    )
    instructions = encode(tokenizer, texts)
    return TrainingSteps(
        learned, images, learned.state(torch.from_numpy(state)), learned.action(torch.from_numpy(action)),
        instructions, torch.tensor(task), torch.tensor(ends), tokenizer.token_to_id("[PAD]"),
        commonness(instructions, tokenizer.get_vocab_size()), bad.left_out,
        load_scenes(dataset, config, learned, episodes, texts) if sees else None,
    )  # fmt: skip


def learns_from_scenes(dataset: Any, config: Config) -> bool:
    """Return whether the network learns to see from the data set's scenes: there are some, and they are wanted."""
    wanted = config.looks and config.pictures and config.state
    return bool(wanted) and (dataset.directory / scenes.DIRECTORY).is_dir()


def load_scenes(dataset: Any, config: Config, learned: DatasetStats, episodes: list[Any], texts: list[str]) -> Scenes:
    """Return the scenes of the episodes.

    Raises DatasetError for an episode without scenes, and for scenes of an earlier version or of other cameras.
    """
    position = Scaling(learned.state.offset[:XYZ], learned.state.scale[:XYZ])
    parts = []
    for episode, each in zip(episodes, scenes.read(dataset.directory, [e.index for e in episodes]), strict=True):
        lacking = [*({"steps"} - each.keys()), *(set(learned.cameras) - set(each["cameras"].tolist()))]
        if lacking or len(each["steps"]) != episode.length:
            problem = f"no {lacking[0]}" if lacking else f"{len(each['steps'])} steps, not {episode.length}"
            raise DatasetError(f"{dataset.name}: the scenes of episode {episode.index} have {problem}; {REMAKE}")
        order = [each["cameras"].tolist().index(camera) for camera in learned.cameras]
        state, places, pixels = (torch.from_numpy(each[name]) for name in ("state", "places", "pixels"))
        parts.append(
            Scenes(
                torch.stack([small(each["images"][:, camera], config.side) for camera in order], 1),
                learned.state(state),
                position(places),
                pixels[:, order],
                torch.full((len(state),), texts.index(str(each["instruction"]))),
                position(torch.from_numpy(each["steps"])),
            )
        )
    names = [entry.name for entry in fields(Scenes)]
    return Scenes(*(torch.cat([getattr(part, name) for part in parts]) for name in names))


def select_cameras(dataset: Any, robot: MinivlaRobot, config: Config) -> tuple[str, ...]:
    """Return the cameras to train on. Raises DatasetError if rate, shapes or cameras differ from the robot's."""
    if dataset.fps != robot.rate_hz:
        raise DatasetError(
            f"{dataset.name} has {dataset.fps:g} steps per second; expected {robot.name}'s {robot.rate_hz:g}"
        )
    for key, size in ((libero.STATE, total(robot.state)), (libero.ACTION, total(robot.action))):
        shape = dataset.features.get(key, {}).get("shape")
        if shape is None or list(shape) != [size]:
            raise DatasetError(
                f"{dataset.name}: {key} is {shape or 'missing'}; expected {robot.name}'s [{size}] numbers"
            )
    names, indices = tuple(robot.cameras), CAMERA_INDICES[config.cameras]
    if config.cameras == "wrist" and len(names) < 2:
        raise DatasetError(f"{dataset.name} has only the camera {', '.join(names)}; use --set cameras=front")
    cameras = tuple(names[index] for index in indices if index < len(names))
    needs_videos = config.pictures and not learns_from_scenes(dataset, config)
    for key in (robot.cameras[camera] for camera in cameras):
        if needs_videos and key not in dataset.video_keys:
            raise DatasetError(f"{dataset.name} has no camera {key}; it has {', '.join(dataset.video_keys) or 'none'}")
    return cameras


def describe_source(source: dict[str, Any], numbers: list[int]) -> str:
    """Describe policy, suite and initial states of the given episodes of a data set made by the lab; else ""."""
    if not {"policy", "suite", "starts", "noise", "episodes"} <= source.keys():
        return ""
    seeds = [source["episodes"][number]["seed"] for number in numbers]
    parts = [f"{source['policy']} on {source['suite']}", f"starts {source['starts']}"]
    parts += [f"seeds {min(seeds)} to {max(seeds)}"] if source["starts"] == "drawn" else []
    parts += [f"noise {source['noise']:g}"] if source["noise"] else []
    parts += [f"assets {source['assets']['kind']}"] if source.get("assets") else []
    return ", ".join(parts)


def select_episodes(episodes: list[Any], count: int) -> list[Any]:
    """Return the first `count` episodes, evenly per task; 0 for all."""
    if not count:
        return episodes
    by_task: dict[str, list[Any]] = {}
    for episode in episodes:
        by_task.setdefault(episode.tasks[0], []).append(episode)
    if count > len(episodes):
        raise DatasetError(f"--episodes {count} exceeds the data set's {len(episodes)} episodes")
    depth = max(map(len, by_task.values()))
    turns = [group[index] for index in range(depth) for group in by_task.values() if index < len(group)]
    return sorted(turns[:count], key=lambda episode: episode.index)


def encode(tokenizer: Tokenizer, texts: list[str]) -> Tensor:
    """Return token ids int64 [n, L], padded to the longest text."""
    ids = [tokenizer.encode(text.lower()).ids for text in texts]
    length, pad = max(1, *map(len, ids)), tokenizer.token_to_id("[PAD]")
    return torch.tensor([row + [pad] * (length - len(row)) for row in ids])


def commonness(word_ids: Tensor, vocabulary: int) -> Tensor:
    """Return the share of the instructions [E, L] that have each word: float32 [V]."""
    return torch.stack([(word_ids == word).any(1).float().mean() for word in range(vocabulary)])


def digest(state: np.ndarray, action: np.ndarray, texts: list[str]) -> str:
    """Return 16 hex digits that identify states, actions and instructions; images are not included."""
    parts = (state.tobytes(), action.tobytes(), "\n".join(texts).encode())
    return hashlib.sha256(b"|".join(parts)).hexdigest()[:16]


def as_input(images: Tensor) -> Tensor:
    return images.float() / 127.5 - 1


def augmented(images: Tensor, generator: torch.Generator, shift: bool = True) -> Tensor:
    """Shift images uint8 [B, C, 3, s, s] by up to s / 32 pixels, vary brightness, return float32 in [-1, 1].

    A shifted camera imitates small differences in the pose of hand and objects.
    """
    b, c, _, side, _ = images.shape
    if shift:
        far = max(1, side // 32)
        by = torch.randint(-far, far + 1, (2, b * c, 1), generator=generator)
        rows, columns = (torch.arange(side) + by).clamp(0, side - 1)  # each (B C, side)
        flat = images.flatten(0, 1)
        which = torch.arange(b * c)[:, None, None, None]
        colours = torch.arange(3)[None, :, None, None]
        images = flat[which, colours, rows[:, None, :, None], columns[:, None, None, :]].unflatten(0, (b, c))
    light = 1 + 0.2 * (torch.rand((b, 1, 1, 1, 1), generator=generator) * 2 - 1)
    return (as_input(images) * light).clamp(-1, 1)


def muffled(word_ids: Tensor, pad: int, unknown: int, common: Tensor, generator: torch.Generator) -> Tensor:
    """Return instructions [B, L] with some words unknown, some left out and some unknown ones added: [B, L + ADDED].

    The network thereby learns to rely on the words that tell tasks apart, wherever they stand. common [V]: the share of
    the instructions that have a word, which is also how often it is replaced, times MUFFLED.
    """
    rows, length = word_ids.shape
    keys = torch.arange(length).float().expand(rows, -1)
    extra = torch.rand((rows, ADDED), generator=generator) * length
    chance = torch.rand((3, rows, length), generator=generator)
    rare = MUFFLED * common[word_ids]
    words = word_ids.where((chance[0] > rare) | (word_ids == pad), unknown)
    words = words.where((chance[1] > rare / 2) | (word_ids == pad), pad)
    added = torch.where(torch.rand((rows, ADDED), generator=generator) < MUFFLED, unknown, pad)
    ends = (word_ids != pad).sum(1, keepdim=True)
    keys = torch.cat([keys, extra.minimum(ends.float())], 1)
    every = torch.cat([words, added], 1)
    order = (keys + 1e6 * (every == pad)).argsort(1)  # padding goes to the end
    return every.gather(1, order)
