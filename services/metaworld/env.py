"""One Meta-World environment, reused over tasks and episodes: metaworld's own classes, to the bit.

`load_task` makes the package's environment, `reset` gives it a variation as its `set_task` does, `step` is its `step`.
What is added is what gymnasium's loop lacks: pictures are drawn only when somebody asks, an episode's scene can be
posed again afterwards, and no step limit but the run's ends an episode. Which episodes a process ran before changes
nothing: tests/metaworld hold every task to that, and to the unmodified package.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import mujoco
import numpy as np
from metaworld import _encode_task as as_metaworlds
from metaworld.env_dict import ALL_V3_ENVIRONMENTS

from services.metaworld.drawing import Drawing, forwarded
from services.metaworld.tasks import Task
from vla_common import memory

CORNER2 = (0.75, 0.075, 0.7)  # m: where LeRobot's adapter (src/lerobot/envs/metaworld.py) moves this camera
STATE = mujoco.mjtState.mjSTATE_INTEGRATION
POSE = mujoco.mjtState.mjSTATE_QPOS | mujoco.mjtState.mjSTATE_MOCAP_POS | mujoco.mjtState.mjSTATE_MOCAP_QUAT


class MetaworldEnv:
    """A Sawyer arm driven action by action. MuJoCo's renderer must be chosen before this module is imported."""

    def __init__(self, camera_size: int = 480):
        self.camera_size = camera_size
        self.task: Task | None = None
        self._env = None  # metaworld's
        self._drawing: Drawing | None = None
        self._seed = 0
        self._begun: mujoco.MjData | None = None  # what `reset` left
        self._shown: mujoco.MjData | None = None  # what pictures show, None before the first reset

    @property
    def instruction(self) -> str:
        return self.task.instruction

    def load_task(self, task: Task, seed: int = 0) -> None:
        """Makes the task's environment unless it is there; `start` draws by `seed`."""
        self._seed = seed
        if self.task is not None and self.task.name == task.name:
            self.task = task
            return
        self._drop()
        memory.give_back()  # before the next scene is there, too
        self._class = ALL_V3_ENVIRONMENTS[task.name]
        env = self._class()
        env.model.camera("corner2").pos = CORNER2
        env.max_path_length = sys.maxsize  # it refuses to go on after 500; the run's limit counts
        self._env, self.task = env, task
        self._model, self._data = env.model, env.data
        self._posed = mujoco.MjData(env.model)  # as `show` poses it
        self._drawing = Drawing(env.model, self.camera_size)

    def start(self, episode: int) -> np.ndarray:
        """Returns the vector that the task's environment draws when it is seeded, as LeRobot's adapter has it do.

        None of the fifty variations is drawn so: those come of numpy's global generator.
        """
        env = self._require_task()
        self._vary(np.zeros(env._random_reset_space.shape))
        env.seed((self._seed + episode) % 2**32)
        env._freeze_rand_vec, env.seeded_rand_vec = False, True
        try:
            env.reset()
            return np.array(env._last_rand_vec, np.float64)
        finally:
            env._freeze_rand_vec, env.seeded_rand_vec = True, False
            self._shown = None

    def _vary(self, vector: np.ndarray) -> None:
        told = {"env_cls": self._class, "rand_vec": vector, "partially_observable": False}
        self._env.set_task(as_metaworlds(self.task.name, told))

    def reset(self, episode: int, init_state: np.ndarray) -> None:
        """Starts an episode at a variation: float64 [3 or 6], where objects and goal are. `episode` changes nothing."""
        env = self._require_task()
        space = env._random_reset_space
        vector = checked_vector(init_state, space.shape[0], f"variation of {self.task.name}")
        if not space.contains(vector):
            raise ValueError(f"variation {vector} is outside of {self.task.name}'s space; is it another task's?")
        self._vary(vector)
        self._seen, _ = env.reset()
        self._steps = 0
        self._begun = copy.copy(self._data)
        self._shown = self._data

    def step(self, action: np.ndarray) -> bool:
        """Executes one action, finite [4], for 12.5 ms; returns whether metaworld counts the task as solved now."""
        env = self._require_episode()
        action = checked_vector(action, 4, "action", np.float32)
        self._seen, _, _, _, info = env.step(action)
        self._steps += 1
        self._shown = self._data
        return bool(info["success"])

    def render(self, camera: str) -> np.ndarray:
        """Returns a camera's picture: uint8 [size, size, 3], bottom row first.

        corner2 hangs upside down in metaworld's scenes: it is turned by 180°, as LeRobot's adapter does.
        """
        self._require_episode()
        image = self._drawing.draw(camera, self._shown)
        return np.ascontiguousarray(image[::-1, ::-1]) if camera == "corner2" else image

    def state(self) -> np.ndarray:
        """Returns LeRobot's agent_pos: float32 [4], the hand's position (m) and how open the gripper is, 0 to 1."""
        self._require_episode()
        return self._seen[:4].astype(np.float32)

    def sim_state(self) -> np.ndarray:
        """Returns the number of steps so far, and all that MuJoCo integrates from: float64."""
        self._require_episode()
        return np.concatenate([[float(self._steps)], self._get(self._data, STATE)])

    def restore(self, sim_state: np.ndarray) -> None:
        """Poses the scene as it was at `sim_state` of this episode, to draw it; the episode stays where it is."""
        self._require_episode()
        state = checked_vector(sim_state, 1 + mujoco.mj_stateSize(self._model, STATE), f"state of {self.task.name}")
        self._pose(state, STATE)

    def view(self) -> np.ndarray:
        """Returns what pictures show: the number of steps, and the pose: float64."""
        self._require_episode()
        now = self._shown
        steps = 0.0 if now is self._begun else float(self._steps) if now is self._data else self._posed_steps
        return np.concatenate([[steps], self._get(now, POSE)])

    def show(self, view: np.ndarray) -> None:
        """Poses the scene as `view` of this episode says."""
        self._require_episode()
        view = checked_vector(view, 1 + mujoco.mj_stateSize(self._model, POSE), f"view of {self.task.name}")
        self._pose(view, POSE)

    def _pose(self, state: np.ndarray, which: mujoco.mjtState) -> None:
        """Before the first step pictures show what metaworld's reset has left, where not all follows from the pose."""
        if state[0] == 0:
            self._shown = self._begun
            return
        mujoco.mj_setState(self._model, self._posed, np.ascontiguousarray(state[1:]), which)
        forwarded(self._model, self._posed)
        self._posed_steps, self._shown = float(state[0]), self._posed

    def _get(self, data: mujoco.MjData, which: mujoco.mjtState) -> np.ndarray:
        found = np.empty(mujoco.mj_stateSize(self._model, which))
        mujoco.mj_getState(self._model, data, found, which)
        return found

    def fixture_poses(self) -> dict[str, np.ndarray]:
        """Returns what a variation has moved and the simulator's state does not hold: bodies, sites and the goal."""
        self._require_episode()
        return {
            "bodies": self._model.body_pos.ravel().copy(),
            "sites": self._model.site_pos.ravel().copy(),
            "goal": np.array(self._env._target_pos, np.float64),
        }

    def privileged(self, first: bool) -> dict[str, Any]:
        """Returns what metaworld's experts look at: the task's name and its observation, 39 numbers with the goal."""
        self._require_episode()
        return {"task": self.task.name, "observation": np.array(self._seen, np.float64)}

    def close(self) -> None:
        """Frees the simulation and what draws it."""
        self._drop()

    def _drop(self) -> None:
        if self._drawing is not None:
            self._drawing.free()
        if self._env is not None:
            self._env.close()
        self._drawing = self._env = self.task = self._shown = None

    def _require_task(self):
        if self._env is None:
            raise RuntimeError("no task is loaded; call load_task() first")
        return self._env

    def _require_episode(self):
        if self._shown is None:
            raise RuntimeError("no episode has begun; call load_task() and then reset()")
        return self._env


def checked_vector(value: Any, size: int, what: str, dtype: type = np.float64) -> np.ndarray:
    """Returns a finite vector [size]. Raises ValueError for anything else."""
    vector = np.asarray(value, dtype)
    if vector.shape != (size,) or not np.isfinite(vector).all():
        raise ValueError(f"{what} of shape {vector.shape} is not a finite vector of {size} numbers")
    return vector
