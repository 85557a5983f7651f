"""A small world for audits: coloured cubes on a table, an expert, its recordings, and a policy that looks.

The policy finds the cube in its images, so every fault of images, sentences, states and actions shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.spatial.transform import Rotation

from vla_contract import ActionChunk, Observation, Policy, PolicyInfo
from vla_contract.protocol.parts import GRIPPER_CLOSES, HAND_STATE, OSC_POSE
from vla_datasets import libero
from vla_datasets.writing import Writer

SIDE, HORIZON, STEPS = 64, 8, 48
COLOURS = {"red": (220, 40, 40), "blue": (40, 60, 220), "yellow": (220, 210, 40)}
VERBS, ENDS = ("push", "lift"), {"left": -0.12, "right": 0.12}
TASKS = [f"{verb} the {colour} cube to the {end}" for verb in VERBS for colour in COLOURS for end in ENDS]
CAMERAS = ("agentview", "robot0_eye_in_hand")
REACH = 0.25  # metres from the table's middle to its edge


@dataclass
class Scene:
    """Positions of the cubes [3, 2] in metres, the hand's pose, and whether it is closed."""

    cubes: np.ndarray
    position: np.ndarray
    rotation: Rotation
    closed: float = -1.0

    def state(self) -> np.ndarray:
        """Return the hand's state, float32 [8]."""
        width = 0.04 if self.closed < 0 else 0.012
        vector = self.rotation.as_rotvec()
        return np.concatenate([self.position, vector, [width, -width]]).astype(np.float32)

    def images(self) -> dict[str, np.ndarray]:
        """Draw the table from above, and around the hand."""
        front = np.full((SIDE, SIDE, 3), (90, 100, 80), np.uint8)
        front[: SIDE // 4] = (120, 110, 150)  # the wall, at the top
        wrist = np.full((SIDE, SIDE, 3), (70, 80, 90), np.uint8)
        wrist[:, :6] = (20, 20, 20)  # a finger, on the left
        for xy, colour in zip(self.cubes, COLOURS.values(), strict=True):
            _square(front, (xy + REACH) / (2 * REACH), 4, colour)
            _square(wrist, (xy - self.position[:2]) / (2 * REACH) + 0.5, 6, colour)
        return dict(zip(CAMERAS, (front, wrist), strict=True))

    def step(self, action: np.ndarray) -> None:
        self.position = self.position + 0.05 * action[:3]
        self.rotation = Rotation.from_rotvec(0.5 * action[3:6]) * self.rotation
        self.closed = float(action[6])


def _square(image: np.ndarray, at: np.ndarray, half: int, colour: tuple[int, int, int]) -> None:
    row, column = (np.clip(at, 0.02, 0.98) * SIDE).astype(int)
    image[max(0, row - half) : row + half, max(0, column - half) : column + half] = colour


def words_of(sentence: str) -> list[str]:
    return sentence.lower().replace(".", " ").split()


def act_towards(cube: np.ndarray, sentence: str, state: np.ndarray) -> np.ndarray:
    """Return the expert's action float64 [7] for a cube at [2] in metres; unknown words count as neither."""
    words = words_of(sentence)
    end = next((shift for word, shift in ENDS.items() if word in words), 0.0)
    lifts = 1.0 if "lift" in words else 0.0 if "push" in words else 0.5
    position, vector = state[:3].astype(np.float64), state[3:6].astype(np.float64)
    closed = state[6] < 0.025
    goal = cube + np.array([0.0, end])  # beside the cube
    near = np.linalg.norm(position[:2] - goal) < 0.05
    target = np.array([*goal, 0.02 + 0.12 * (1 - near) + 0.2 * lifts * closed])
    move = np.clip((target - position) / 0.05 * 0.3, -0.9, 0.9)
    # in the numbers of the axis-angle, as a network would compute it
    wanted = np.array([2.6 - 0.3 * end / 0.12, 0.5 * cube[1] / REACH, 2 * cube[0]])
    turn = np.clip((wanted - vector) / 0.5 * 0.25, -0.5, 0.5)
    return np.concatenate([move, turn, [1.0 if closed or (near and lifts > 0.6) else -1.0]])


def scene(seed: int) -> Scene:
    random = np.random.default_rng(seed)
    rotation = Rotation.from_rotvec([2.4, random.uniform(-0.6, 0.6), random.uniform(-0.8, 0.8)])
    position = np.append(random.uniform(-0.2, 0.2, 2), random.uniform(0.1, 0.3))
    return Scene(random.uniform(-0.2, 0.2, (3, 2)), position, rotation)


def record(directory: Path, episodes: int = 24, seed: int = 0) -> None:
    """Write the expert's episodes as a LeRobot data set in LIBERO's layout."""
    cameras = tuple(CAMERAS)
    writer = Writer(
        directory, libero.ROBOT, libero.FPS, libero.features(cameras, SIDE), libero.modality(cameras), None
    )  # fmt: skip
    for number in range(episodes):
        sentence, world = TASKS[number % len(TASKS)], scene(1000 * seed + number)
        states, actions, frames = [], [], []
        cube = list(COLOURS).index(sentence.split()[2])
        for _ in range(STEPS):
            state = world.state()
            action = act_towards(world.cubes[cube], sentence, state)
            states.append(state)
            actions.append(action.astype(np.float32))
            frames.append(world.images())
            world.step(action)
        columns = {libero.STATE: np.stack(states), libero.ACTION: libero.gripper_opens(np.stack(actions))}
        videos = {libero.video_key(name): np.stack([f[name] for f in frames])[:, :, :] for name in CAMERAS}
        # LIBERO's sets store images turned by 180°; profile lerobot-64 sends them so
        writer.add(columns, videos, sentence)
    writer.finish()


@dataclass
class LookingPolicy(Policy):
    """Finds the cube in both images, and trusts each a little.

    error: of what it sees, as a share of the table; noise: of its actions; both follow from the observation.
    """

    error: float = 0.03
    noise: float = 0.05
    seed: int = 0
    horizon: int = HORIZON
    cameras: tuple[str, ...] = CAMERAS
    details: dict[str, str] = field(default_factory=dict)

    def info(self) -> PolicyInfo:
        return PolicyInfo(
            "looking", (*OSC_POSE, GRIPPER_CLOSES), HAND_STATE, cameras=self.cameras, image_hw=(SIDE, SIDE),
            horizon=self.horizon, max_batch=8, profile="lerobot-64", details=self.details,
        )  # fmt: skip

    def act(self, observations: list[Observation]) -> list[ActionChunk]:
        return [ActionChunk(self.plan(seen)) for seen in observations]

    def plan(self, seen: Observation) -> np.ndarray:
        """Return the next actions, float32 [horizon, 7], by imagining what they do."""
        assert seen.state is not None
        state = seen.state.astype(np.float64)
        random = np.random.default_rng([self.seed, int(abs(state[:6]).sum() * 1e5) % 2**31])
        cube = self.find(seen, state) + random.normal(0, self.error * REACH, 2)
        actions = []
        for _ in range(self.horizon):
            action = act_towards(cube, seen.instruction, state)
            action[:6] += random.normal(0, self.noise, 6)
            actions.append(action.astype(np.float32))
            state = self._imagine(state, action)
        return np.stack(actions)

    def find(self, seen: Observation, state: np.ndarray) -> np.ndarray:
        """Return where the cube of the sentence seems to be, [2] in metres."""
        words = words_of(seen.instruction)
        colours = [colour for name, colour in COLOURS.items() if name in words] or list(COLOURS.values())
        spots = []
        for camera in CAMERAS:
            image = seen.images[camera].astype(np.float64)
            distance = np.min([np.abs(image - np.array(colour)).sum(-1) for colour in colours], 0)
            weights = np.exp(-np.minimum(distance, 400) / 25) + 1e-6
            rows, columns = np.mgrid[0:SIDE, 0:SIDE] / SIDE
            spots.append(np.array([(weights * rows).sum(), (weights * columns).sum()]) / weights.sum())
        front = spots[0] * 2 * REACH - REACH
        wrist = (spots[1] - 0.5) * 2 * REACH + state[:2]
        return np.array([0.5, 0.3]) * front + np.array([0.5, 0.7]) * wrist

    @staticmethod
    def _imagine(state: np.ndarray, action: np.ndarray) -> np.ndarray:
        vector = (Rotation.from_rotvec(0.5 * action[3:6]) * Rotation.from_rotvec(state[3:6])).as_rotvec()
        width = 0.04 if action[6] < 0 else 0.012
        return np.concatenate([state[:3] + 0.05 * action[:3], vector, [width, -width]])
