"""A toy Gymnasium environment as a benchmark: a point on a line, solved at 1."""

import gymnasium
import numpy as np

from vla_contract import Part
from vla_evaluation.gymnasium import GymnasiumBenchmark, GymnasiumTask

ID = f"{__name__}:Line-v0"


class Line(gymnasium.Env):
    """The start follows from the seed; without one, from the number of resets, as in environments that cycle starts.

    success  key of `info`, true from 1 on; an episode ends there and at -1
    noise    of a random number generator without a seed
    """

    observation_space = gymnasium.spaces.Dict(
        {
            "image": gymnasium.spaces.Box(0, 255, (4, 6, 3), np.uint8),
            "at": gymnasium.spaces.Box(-9, 9, (1,), np.float64),
        }
    )
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, success: str = "is_success", noise: bool = False):
        self.success, self.noise, self.resets = success, noise, 0

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.resets += 1
        self.at = self.np_random.uniform(-0.5, 0.5) if seed is not None else 0.1 * self.resets
        return self.observed(), {}

    def step(self, action):
        self.at += float(action[0]) + (np.random.default_rng().uniform() if self.noise else 0)
        info = {self.success: self.at >= 1} if self.success else {"other": 0}
        return self.observed(), 0.0, bool(abs(self.at) >= 1), False, info

    def observed(self):
        image = np.full((4, 6, 3), int(100 + 50 * np.clip(self.at, -2, 2)), np.uint8)
        image[0] = 255  # the top row
        return {"image": image, "at": np.array([self.at])}


gymnasium.register("Line-v0", Line)


def table(**changes) -> GymnasiumBenchmark:
    """Return the toy's table; `changes` are of its fields, or `kwargs` of the environment."""
    task = GymnasiumTask("line", "go to one", ID, changes.pop("kwargs", {}))
    fields = {
        "name": "Line", "module": __name__, "tasks_of": {"line": [task]}, "horizon": 12, "images": {"front": "image"},
        "action": (Part("move", 1, "m", "to the right", -0.2, 0.2),), "state_key": "at",
        "state": (Part("position", 1, "m", "on the line"),), "control_hz": 30, "packages": ("gymnasium",),
        "environment": "lerobot", "opengl": False,
    }  # fmt: skip
    return GymnasiumBenchmark(**{**fields, **changes})
