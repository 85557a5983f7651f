"""LIBERO with a simulator of sixteen numbers: for what holds of an evaluation whatever is simulated.

Tasks, init states, profiles and conventions are LIBERO's; only the scene is not, which an evaluator and its workers do
not know. So one of its workers starts in a sixth of the processor time. `python -m tests.libero.light SUITE …` takes
what `python -m services.libero` takes. What is LIBERO's own in a fault or a resume is tested with LIBERO.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from services.libero.benchmark import ASSET_NOTES, Libero
from vla_evaluation.benchmark import Assets

BLOCK = 16  # pixels a side that show one number
SOLVED_AFTER = 25  # steps from a start that was drawn, most of the time; from an init state never


class Numbers:
    """As a benchmark's environment has to be: what it shows follows from task, seed, episode and actions alone, and
    each of them matters. Numbers drawn for an episode, so far from one another after a few steps that whatever was
    left over from another episode would show in every hash.
    """

    def __init__(self, camera_size: int):
        self.size, self.task, self.seed, self.now, self.placed = camera_size, None, 0, np.zeros(0), np.zeros(7)
        self.left = np.inf  # steps until the task is solved

    @property
    def instruction(self):
        return self.task.instruction

    def load_task(self, task, seed):
        self.task, self.seed = task, seed

    def start(self, episode):
        return np.random.default_rng((self.task.index, self.seed, episode)).uniform(-1, 1, 16)

    def reset(self, episode, init_state):
        drawn = self.start(episode)
        self.placed = drawn[:7]
        self.now = np.cos(np.asarray(init_state, np.float64)[:16] + drawn)
        self.left = SOLVED_AFTER if np.array_equal(init_state, drawn) and drawn[0] > -0.5 else np.inf

    def step(self, action):
        pushed = np.resize(np.asarray(action, np.float64), self.now.shape)
        self.now = np.sin(3 * np.roll(self.now, 1) + pushed)  # chaotic: the smallest difference grows
        self.left -= 1
        return bool(self.left <= 0)

    def render(self, camera):
        shades = (np.resize(self.now, (self.size // BLOCK, self.size // BLOCK, 3)) * 127 + 128).astype(np.uint8)
        return np.kron(shades, np.ones((BLOCK, BLOCK, 1), np.uint8))

    def state(self):
        return self.now[:8].astype(np.float32)

    def sim_state(self):
        return self.now.copy()

    def restore(self, sim_state):
        self.now = sim_state.copy()

    view, show = sim_state, restore

    def fixture_poses(self):
        return {"table": self.placed}

    def privileged(self, first):
        return {}


class Light(Libero):
    """LIBERO but for its scenes."""

    module = __name__

    def assets(self, asked, volume):
        return Assets("kit", Path(__file__).parent, "light", **ASSET_NOTES["kit"])

    def renderer(self, render):
        return "numpy"

    def worker_variables(self, number):
        return {}

    def make_env(self, assets, work, cameras, camera_size, render):
        work.mkdir(parents=True, exist_ok=True)
        partial = work / f".light.{os.getpid()}.partial"  # as LIBERO's settings: on a full disk no episode begins
        partial.write_text(render)
        partial.replace(work / "light.txt")
        return Numbers(camera_size)


BENCHMARK = Light()
