"""Pointing at a goal on a table of 1 m: three numbers, ten steps a second, one camera that looks down."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from services.tabletop.profiles import PROFILES
from vla_contract.protocol.parts import GRIPPER_CLOSES, Part
from vla_evaluation.benchmark import Assets

HZ = 10


@dataclass(frozen=True)
class Corner:
    """Reach the goal that lies in one corner."""

    index: int
    name: str
    instruction: str
    goal: tuple[float, float]


TASKS = (
    Corner(0, "near_left", "close on the mark at the near left", (0.2, 0.2)),
    Corner(1, "far_right", "close on the mark at the far right", (0.8, 0.7)),
)


class Table:
    """Its state is (time, x, y, gripper); the goal is the task's."""

    def __init__(self, camera_size):
        self.size, self.task, self.seed, self.now = camera_size, None, 0, np.zeros(4)

    @property
    def instruction(self):
        return self.task.instruction

    def load_task(self, task, seed):
        self.task, self.seed = task, seed

    def start(self, episode):
        return np.random.default_rng((self.seed, episode)).uniform(0, 1, 2)

    def reset(self, episode, init_state):
        self.now = np.array([0.0, *init_state, -1.0])

    def step(self, action):
        time, x, y, _ = self.now
        dx, dy, gripper = np.clip(action, -1, 1)
        self.now = np.array([time + 1 / HZ, *np.clip((x + dx / HZ, y + dy / HZ), 0, 1), gripper])
        return bool(gripper > 0 and np.linalg.norm(self.now[1:3] - self.task.goal) < 0.03)

    def render(self, camera):
        image = np.full((self.size, self.size, 3), 200, np.uint8)
        for (x, y), colour in ((self.task.goal, (0, 128, 0)), (self.now[1:3], (200, 0, 0))):
            row, column = (round(c * (self.size - 5)) for c in (y, x))
            image[row : row + 5, column : column + 5] = colour
        return image

    def state(self):
        return np.array([*self.now[1:3], *self.task.goal], np.float32)

    def sim_state(self):
        return self.now.copy()

    def restore(self, sim_state):
        self.now = sim_state.copy()

    def view(self):
        return self.now.copy()

    def show(self, view):
        self.now = view.copy()

    def fixture_poses(self):
        return {}

    def privileged(self, first):
        return {"goal": list(self.task.goal)}


class Tabletop:
    name = "Tabletop"
    module = __name__
    suites = ("reach",)
    action = (Part("velocity", 2, "m/s", "table frame", -1, 1), GRIPPER_CLOSES)
    state = (Part("pointer", 2, "m", "table frame"), Part("goal", 2, "m", "table frame"))
    control_hz = HZ
    cameras = ("overhead",)
    video_camera = "overhead"
    profiles = PROFILES
    packages = ("numpy",)
    worker_gb = 0.2
    uncounted = ()

    def tasks(self, suite):
        return TASKS

    def init_states(self, task):
        return np.random.default_rng(task.index).uniform(0, 1, (4, 2))

    def assets(self, asked, volume):
        return Assets("none", Path(__file__).parent, "0")

    def renderer(self, render):
        return "numpy"

    def worker_variables(self, number):
        return {}

    def make_env(self, assets, work, cameras, camera_size, render):
        return Table(camera_size)


BENCHMARK = Tabletop()
