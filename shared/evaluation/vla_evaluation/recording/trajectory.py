"""The trajectory of a recorded episode, and the pushes that are added to its actions: no process, no file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vla_contract.protocol.parts import Part
from vla_evaluation.benchmark import Environment

FIRST_SEED = 2**31  # of recorded episodes; evaluation's profiles have small ones
NOOP = 1e-4  # OpenVLA's bound of a no-op when it regenerates its data sets
PUSHED, PUSH_STEPS = 1 / 25, (2, 6)  # probability that a push begins at a step, and how long it lasts


def seed_of(seed: int, task: int, episode: int) -> int:
    """Return the seed of an episode's start, which depends on these three numbers only."""
    return int(np.random.SeedSequence((seed, task, episode)).generate_state(1)[0]) | FIRST_SEED


def movement_mask(parts: Sequence[Part]) -> np.ndarray:
    """Return a mask of the movements in an action, bool [m]; a part without a unit selects a state instead."""
    return np.array([part.unit != "1" for part in parts for _ in range(part.size)])


class Noise:
    """Pushes on the movements of one episode's actions, so that demonstrations show how to recover.

    A push adds one vector to a few actions: normal, `scale` of each part's range. Between pushes the action is executed
    as it is: steady noise would make the next action an answer to a velocity that no observation shows.
    """

    def __init__(self, parts: Sequence[Part], scale: float, seed: int):
        high = np.array([1.0 if part.high is None else part.high for part in parts for _ in range(part.size)])
        low = np.array([-1.0 if part.low is None else part.low for part in parts for _ in range(part.size)])
        self.low, self.high, self.scale = low, high, np.where(movement_mask(parts), scale * (high - low) / 2, 0.0)
        self.rng, self.push, self.left = np.random.default_rng(seed), np.zeros(len(low)), 0

    def __call__(self, action: np.ndarray) -> np.ndarray:
        """Return the action with the current push, clipped to its range; unchanged without one."""
        if not self.scale.any():
            return action
        self.left = max(0, self.left - 1)
        if not self.left and self.rng.random() < PUSHED:
            self.left = int(self.rng.integers(*PUSH_STEPS, endpoint=True))
            self.push = self.rng.normal(size=len(self.scale)) * self.scale
        if not self.left:
            return action
        noisy = np.clip(action + self.push, self.low, self.high)
        return np.where(self.scale > 0, noisy, action).astype(np.float32)


class TrajectoryRecorder:
    """Stores the observation and the action of every step; called with each action in turn."""

    def __init__(self, env: Environment, parts: Sequence[Part], noise: Noise):
        self.env, self.parts, self.noise = env, parts, noise
        names = ("actions", "executed", "states", "views", "sim_states")
        self.steps: dict[str, list[np.ndarray]] = {name: [] for name in names}

    def __call__(self, action: np.ndarray) -> np.ndarray:
        """Store the step; return the action to execute."""
        executed = self.noise(action)
        step = (action, executed, self.env.state(), self.env.view(), self.env.sim_state())
        for values, value in zip(self.steps.values(), step, strict=True):
            values.append(value)
        return executed

    def arrays(self, drop_noops: bool = False) -> dict[str, np.ndarray]:
        """Return the stored arrays by name, [T, …]; without no-op steps if `drop_noops`."""
        arrays = {name: np.asarray(values) for name, values in self.steps.items()}
        if not drop_noops:
            return arrays
        mask = effective_steps(arrays["actions"], movement_mask(self.parts))
        return {name: values[mask] for name, values in arrays.items()}


def effective_steps(actions: np.ndarray, moving: np.ndarray) -> np.ndarray:
    """Return a mask of the actions [T, m] that OpenVLA's rule keeps, bool [T]: those that move, and those whose gripper
    command differs from the last one in the mask.
    """
    mask, last = np.zeros(len(actions), bool), None
    for step, action in enumerate(actions):
        still = np.linalg.norm(action[moving]) < NOOP
        same = last is None or np.array_equal(action[~moving], last[~moving])
        if not (still and same):
            mask[step], last = True, action
    return mask
