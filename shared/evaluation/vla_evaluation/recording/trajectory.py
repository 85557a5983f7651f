"""The trajectory of a recorded episode, and the noise that is added to its actions: no process, no file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vla_contract.protocol.parts import Part
from vla_evaluation.benchmark import Environment

FIRST_SEED = 2**31  # of recorded episodes; evaluation's profiles have small ones
NOOP = 1e-4  # OpenVLA's bound on a movement that is none, where it makes its data sets anew
CORRELATION = 0.8  # with the last step's noise: white noise averages out before the arm has moved


def seed_of(seed: int, task: int, episode: int) -> int:
    """Return the seed that an episode's start is drawn from: it depends on these three, and on no other episode."""
    return int(np.random.SeedSequence((seed, task, episode)).generate_state(1)[0]) | FIRST_SEED


def movement_mask(parts: Sequence[Part]) -> np.ndarray:
    """Return which numbers of an action are movements, bool [m]; a part without a unit says one of two things."""
    return np.array([part.unit != "1" for part in parts for _ in range(part.size)])


class Noise:
    """Noise of one episode on the movements of its actions: normal, `scale` of each part's range, correlated in time.

    x(t) = 0.8 x(t − 1) + 0.6 n(t), with n of deviation `scale`: so is x, once it has begun.
    """

    def __init__(self, parts: Sequence[Part], scale: float, seed: int):
        high = np.array([1.0 if part.high is None else part.high for part in parts for _ in range(part.size)])
        low = np.array([-1.0 if part.low is None else part.low for part in parts for _ in range(part.size)])
        self.low, self.high, self.scale = low, high, np.where(movement_mask(parts), scale * (high - low) / 2, 0.0)
        self.rng, self.now = np.random.default_rng(seed), np.zeros(len(low))

    def __call__(self, action: np.ndarray) -> np.ndarray:
        """Return the action with noise, within its range; as it is where there is none."""
        if not self.scale.any():
            return action
        fresh = self.rng.normal(size=len(self.now)) * self.scale
        self.now = CORRELATION * self.now + np.sqrt(1 - CORRELATION**2) * fresh
        noisy = np.clip(action + self.now, self.low, self.high)
        return np.where(self.scale > 0, noisy, action).astype(np.float32)


class TrajectoryRecorder:
    """Stores, of every step, what a policy would have seen and its action; called with each action in turn."""

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
        """Return what was stored, by name: [T, …]; without the steps that do nothing where `drop_noops`."""
        arrays = {name: np.asarray(values) for name, values in self.steps.items()}
        if not drop_noops:
            return arrays
        mask = effective_steps(arrays["actions"], movement_mask(self.parts))
        return {name: values[mask] for name, values in arrays.items()}


def effective_steps(actions: np.ndarray, moving: np.ndarray) -> np.ndarray:
    """Return which of the actions [T, m] OpenVLA's rule keeps, bool [T]: those that move, and those that say to the
    gripper what the last one that was kept did not.
    """
    mask, last = np.zeros(len(actions), bool), None
    for step, action in enumerate(actions):
        still = np.linalg.norm(action[moving]) < NOOP
        same = last is None or np.array_equal(action[~moving], last[~moving])
        if not (still and same):
            mask[step], last = True, action
    return mask
