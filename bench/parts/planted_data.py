"""Faults of meaning to plant into a data set, one at a time, and a set of an arm with joint angles to plant them into.

A planted set is in order otherwise: rows, videos, tasks and the set's statistics agree with each other. The audit does
not import this module.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from vla_datasets import metadata, statistics, tables, videos
from vla_datasets.dataset import Dataset
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.metadata import ACTION, STATE
from vla_datasets.writing import DEFAULT_COLUMNS, Writer

Columns = dict[str, np.ndarray]
Plant = Callable[[list["Recorded"], int], None]  # of all episodes and the number of one


@dataclass
class Recorded:
    """An episode in memory: its columns [T, …], its videos uint8 [T, H, W, 3] and its instruction."""

    columns: Columns
    videos: Columns
    task: str


@dataclass(frozen=True)
class Robot:
    """What a plant must know of a set's numbers: columns that are angles, the gripper's, and its other range."""

    state_angles: tuple[int, ...]
    action_angles: tuple[int, ...]
    gripper: int = -1
    gripper_range: tuple[float, float] = (0.0, 1.0)  # as recorded; the plant writes the other of 0…1 and −1…1


def load(dataset: Dataset) -> list[Recorded]:
    """Return every episode of a data set."""
    return [
        Recorded(
            {key: value for key, value in dataset.columns(episode.index).items() if key not in DEFAULT_COLUMNS},
            {key: dataset.frames(episode.index, key) for key in dataset.video_keys},
            episode.tasks[0],
        )
        for episode in dataset.episodes
    ]


def save(directory: Path, like: Dataset, episodes: list[Recorded], layout: type[Writer] = Writer) -> LeRobotDataset:
    """Write episodes as a data set with the features of `like`."""
    features = {key: feature for key, feature in like.features.items() if key not in DEFAULT_COLUMNS}
    robot = like.info.get("robot_type") or "unknown"
    writer = layout(directory, robot, like.fps, features, like.modality, like.source)
    for episode in episodes:
        writer.add(episode.columns, episode.videos, episode.task)
    return writer.finish()


# --- the eleven kinds -------------------------------------------------------------------------------------------


def _images(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Recorded], None]:
    """Return a plant that changes every video of one episode."""

    def plant(episode: Recorded) -> None:
        episode.videos = {key: np.ascontiguousarray(change(images)) for key, images in episode.videos.items()}

    return plant


def _first_camera(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Recorded], None]:
    def plant(episode: Recorded) -> None:
        key = next(iter(episode.videos))
        episode.videos = {**episode.videos, key: change(episode.videos[key])}

    return plant


def swap_cameras(episode: Recorded) -> None:
    """Exchange the first two cameras' videos."""
    first, second, *_ = episode.videos
    episode.videos = {**episode.videos, first: episode.videos[second], second: episode.videos[first]}


def delay_action(episode: Recorded) -> None:
    """Record each action one step late."""
    action = episode.columns[ACTION]
    episode.columns = {**episode.columns, ACTION: np.concatenate([action[:1], action[:-1]])}


def zero_action(episode: Recorded) -> None:
    """Record no action at all."""
    episode.columns = {**episode.columns, ACTION: np.zeros_like(episode.columns[ACTION])}


def to_degrees(robot: Robot, episode: Recorded) -> None:
    """Record angles in degrees."""
    columns = dict(episode.columns)
    for key, numbers in ((STATE, robot.state_angles), (ACTION, robot.action_angles)):
        columns[key] = columns[key].copy()
        columns[key][:, list(numbers)] = np.degrees(columns[key][:, list(numbers)])
    episode.columns = columns


def change_gripper(robot: Robot, episode: Recorded) -> None:
    """Record the gripper from −1 to 1 instead of 0 to 1, or the reverse."""
    action = episode.columns[ACTION].copy()
    opening = action[:, robot.gripper]
    action[:, robot.gripper] = opening * 2 - 1 if robot.gripper_range[0] == 0 else (opening + 1) / 2
    episode.columns = {**episode.columns, ACTION: action}


def other_video(episodes: list[Recorded], index: int, exchange: bool) -> None:
    """Give an episode the videos of another of about the same length, cut or held to its own; `exchange`: both ways."""
    length = len(episodes[index].columns[ACTION])
    others = [number for number in range(len(episodes)) if number != index]
    other = min(others, key=lambda number: (abs(len(episodes[number].columns[ACTION]) - length), number))
    pairs = ((index, other), (other, index)) if exchange else ((index, other),)
    moved = {}
    for to, source in pairs:
        steps = np.minimum(np.arange(len(episodes[to].columns[ACTION])), len(episodes[source].columns[ACTION]) - 1)
        moved[to] = {key: images[steps] for key, images in episodes[source].videos.items()}
    for to, images_of in moved.items():
        episodes[to].videos = images_of


def exchange_sentences(episodes: list[Recorded], index: int, everywhere: bool) -> None:
    """Exchange the sentences of two tasks: of one episode each, or `everywhere`."""
    first = episodes[index].task
    other = next(number for number, episode in enumerate(episodes) if episode.task != first)
    second = episodes[other].task
    for number, episode in enumerate(episodes):
        if everywhere or number in (index, other):
            episode.task = {first: second, second: first}.get(episode.task, episode.task)


def plants(robot: Robot, cameras: int) -> dict[str, tuple[str, Plant]]:
    """Return {name: (the audit's kind, function of all episodes and one's index that plants)} for a robot's sets."""

    def of_one(change: Callable[[Recorded], None]) -> Plant:
        return lambda episodes, index: change(episodes[index])

    def of_all(change: Callable[[Recorded], None]) -> Plant:
        def plant_all(episodes: list[Recorded], index: int) -> None:
            for episode in episodes:
                change(episode)

        return plant_all

    degrees, gripper = (lambda e: to_degrees(robot, e)), (lambda e: change_gripper(robot, e))
    black, frozen = (lambda v: np.zeros_like(v)), (lambda v: np.repeat(v[:1], len(v), 0))
    planted = {
        "BGR": ("BGR", of_one(_images(lambda videos: videos[..., ::-1]))),
        "upside down": ("upside down", of_one(_images(lambda videos: videos[:, ::-1]))),
        "turned by 180°": ("upside down", of_one(_images(lambda videos: videos[:, ::-1, ::-1]))),
        "black video": ("black video", of_one(_first_camera(black))),
        "frozen video": ("frozen video", of_one(_first_camera(frozen))),
        "another's video, copied": ("other video", lambda e, i: other_video(e, i, exchange=False)),
        "another's video, exchanged": ("other video", lambda e, i: other_video(e, i, exchange=True)),
        "action delayed, one episode": ("action delayed", of_one(delay_action)),
        "action delayed, all": ("action delayed", of_all(delay_action)),
        "gripper range, one episode": ("gripper range", of_one(gripper)),
        "gripper range, all": ("gripper range", of_all(gripper)),
        "zero actions, one episode": ("zero actions", of_one(zero_action)),
        "zero actions, all": ("zero actions", of_all(zero_action)),
        "sentences, one episode each": ("sentences exchanged", lambda e, i: exchange_sentences(e, i, False)),
        "sentences, everywhere": ("sentences exchanged", lambda e, i: exchange_sentences(e, i, True)),
    }
    if cameras > 1:
        planted["cameras swapped"] = ("cameras swapped", of_one(swap_cameras))
    if robot.state_angles:
        planted["degrees, one episode"] = ("degrees", of_one(degrees))
        planted["degrees, all"] = ("degrees", of_all(degrees))
    return planted


def plant(
    directory: Path,
    healthy: LeRobotDataset,
    episodes: list[Recorded],
    change: Callable[[list[Recorded], int], None],
    index: int,
) -> LeRobotDataset:
    """Write a copy of a v2.1 set with one fault, planted at episode `index`; files that do not change are links."""
    changed = [replace(episode) for episode in episodes]
    change(changed, index)
    shutil.copytree(healthy.directory, directory, copy_function=os.link)
    planted, numbers = LeRobotDataset(directory), {text: number for number, text in healthy.tasks.items()}
    for episode, before, after in zip(healthy.episodes, episodes, changed, strict=True):
        for key, images in after.videos.items():
            if images is not before.videos[key]:
                videos.write(planted.video_path(episode.index, key), images, planted.fps)
        if after.columns is not before.columns or after.task != before.task:
            rows = dict(healthy.columns(episode.index))
            rows |= {key: values.astype(rows[key].dtype) for key, values in after.columns.items()}
            rows["task_index"] = np.full_like(rows["task_index"], numbers[after.task])
            tables.write(planted.data_path(episode.index), rows)
    described = zip(healthy.episodes, changed, strict=True)
    lines = [{"episode_index": e.index, "tasks": [after.task], "length": e.length} for e, after in described]
    metadata.write_lines(directory / metadata.EPISODES, lines)
    planted = LeRobotDataset(directory)
    metadata.write_json(directory / metadata.STATS, statistics.plain(planted.computed_statistics()))
    return planted


# --- a robot of the tests ---------------------------------------------------------------------------------------

JOINTS = ("shoulder_pan", "shoulder_lift", "elbow", "wrist_flex", "wrist_roll")
ARM_FPS, LINKS = 30, (0.0, 0.35, 0.3, 0.12)  # lengths of the links after each of the first four joints
COLOURS = {"red": (200, 40, 40), "blue": (40, 60, 200), "yellow": (210, 190, 40)}
ARM = Robot(tuple(range(5)), tuple(range(5)))


def arm_set(
    directory: Path, count: int, seed: int = 0, size: tuple[int, int] = (72, 96), layout: type[Writer] = Writer
) -> LeRobotDataset:
    """Write a set of an arm with five joints (rad) and a gripper (0 closed, 1 open) that lifts blocks; return it.

    Actions are absolute targets, 30 per second, which the joints follow with a delay; teleoperation's jitter, sensor
    noise and changing light are in it. Cameras: front and side.
    """
    names = [*JOINTS, "gripper"]
    features: dict[str, Mapping[str, Any]] = {
        key: {"dtype": "float32", "shape": [6], "names": names} for key in (STATE, ACTION)
    }
    cameras = ("observation.images.front", "observation.images.side")
    features |= {key: {"dtype": "video", "shape": [*size, 3]} for key in cameras}
    writer = layout(directory, "arm5", ARM_FPS, features)
    for index in range(count):
        episode = _arm_episode(np.random.default_rng([seed, index]), cameras, size, index)
        writer.add(episode.columns, episode.videos, episode.task)
    return writer.finish()


def _arm_episode(random: np.random.Generator, cameras: tuple[str, ...], size: tuple[int, int], index: int) -> Recorded:
    name = list(COLOURS)[index % len(COLOURS)]
    # Each block has its own region of the table, with some room.
    pans = {colour: 0.8 * (number - 1) + random.uniform(-0.2, 0.2) for number, colour in enumerate(COLOURS)}
    home = np.array([0.0, -0.9, 1.5, 0.5, 0.0, 1.0]) + random.normal(0, 0.05, 6)
    above = np.array([pans[name], -0.3, 1.3, 0.6, random.uniform(-0.4, 0.4), 1.0])
    down = above + np.array([0, 0.35, 0.1, 0.0, 0, 0])
    lifted = above + np.array([0, -0.5, 0.1, 0.1, 0, -1.0])
    grasped = np.concatenate([down[:5], [0.0]])
    side = 1 if pans[name] < 0.3 else -1
    drop = lifted + np.array([side * random.uniform(0.4, 0.7), 0.3, 0, 0, 0, 0])
    keys = [home, above, down, grasped, lifted, drop, np.concatenate([drop[:5], [1.0]])]
    steps = random.integers(9, 18, len(keys) - 1)
    targets = [keys[0]] * 4
    for before, after, count in zip(keys, keys[1:], steps, strict=False):
        share = np.linspace(0, 1, count + 1)[1:, None]
        targets += list(before + (after - before) * (10 * share**3 - 15 * share**4 + 6 * share**5))
    jitter = np.zeros((len(targets), 6))
    for step in range(1, len(jitter)):
        jitter[step] = 0.85 * jitter[step - 1] + random.normal(0, (*[0.012] * 5, 0.0))
    action = np.asarray(targets) + jitter
    action[:, 5] = np.clip(action[:, 5], 0, 1)
    state, position = np.empty_like(action), action[0].copy()
    for step, target in enumerate(action):
        state[step] = position
        position = position + 0.55 * (target - position)
    close, release = 4 + steps[:3].sum() - 3, 4 + steps[:5].sum() + 4
    light, points = random.uniform(0.9, 1.1), [_hand(joints)[-1] for joints in state]
    start = _hand(down)[-1] * (1, 1, 0) + (0, 0, 0.03)
    blocks = []
    for step in range(len(state)):
        held = start if step < close else points[min(step, release)]
        blocks.append({colour: _hand([pan, *down[1:]])[-1] * (1, 1, 0) + (0, 0, 0.03) for colour, pan in pans.items()})
        blocks[-1][name] = held
    videos = {
        camera: np.stack(
            [_draw(joints, block, view, size, light, random) for joints, block in zip(state, blocks, strict=True)]
        )
        for view, camera in enumerate(cameras)
    }
    measured = state + random.normal(0, (*[0.002] * 5, 0.0), state.shape)
    columns = {STATE: measured.astype(np.float32), ACTION: action.astype(np.float32)}
    return Recorded(columns, videos, f"pick up the {name} block")


def _hand(joints: Any) -> np.ndarray:
    """Return the positions of the joints and of the hand, [5, 3] in m: the base first."""
    pan, pitch = joints[0], 0.0
    points, direction = [np.zeros(3), np.array([0.0, 0.0, 0.3])], np.array([np.cos(pan), np.sin(pan)])
    for angle, length in zip((joints[1] + np.pi / 2, -joints[2], -joints[3]), LINKS[1:], strict=True):
        pitch += angle
        reach = length * np.cos(pitch)
        points.append(points[-1] + (*(direction * reach), length * np.sin(pitch)))
    return np.stack(points)


def _draw(
    joints: np.ndarray, blocks: Mapping[str, np.ndarray], view: int, size: tuple[int, int], light: float,
    random: np.random.Generator,
) -> np.ndarray:  # fmt: skip
    height, width = size
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    image = np.empty((height, width, 3), np.float32)
    horizon = (0.35, 0.25)[view] * height
    image[:] = ((150, 165, 185), (190, 185, 170))[view]  # the wall
    image[rows > horizon] = ((150, 115, 80), (120, 125, 95))[view]  # the table
    image *= (0.8 + 0.2 * rows / height)[..., None]

    def project(point: np.ndarray) -> np.ndarray:
        x, y, z = point
        across, depth = (y, x) if view == 0 else (-x + 0.35, y + 0.5)
        return np.array([(0.5 + 0.55 * across) * width, (0.8 - 0.75 * z + 0.12 * depth) * height])

    def line(first: np.ndarray, second: np.ndarray, radius: float, colour: tuple[int, ...]) -> None:
        along = second - first
        share = ((columns - first[0]) * along[0] + (rows - first[1]) * along[1]) / max(1e-6, along @ along)
        share = np.clip(share, 0, 1)
        away = np.hypot(columns - first[0] - share * along[0], rows - first[1] - share * along[1])
        image[away < radius] = colour

    for colour, point in blocks.items():
        at = project(point)
        line(at, at, 0.045 * height, COLOURS[colour])
    points = [project(point) for point in _hand(joints)]
    for number, (first, second) in enumerate(pairwise(points)):
        line(
            first,
            second,
            (0.05 - 0.008 * number) * height,
            ((60, 60, 65), (235, 130, 30), (230, 140, 40), (40, 40, 40))[number],
        )
    spread = 0.03 * height * (0.4 + joints[5])
    for side in (-1, 1):
        finger = points[-1] + (side * spread, 0.0)
        line(finger, finger + np.array([0, 0.06 * height]), 0.015 * height, (30, 30, 30))
    return np.clip(light * image + random.normal(0, 2, image.shape), 0, 255).astype(np.uint8)
