"""One Meta-World environment, reused over tasks and episodes: bit-identical to metaworld's classes.

`load_task` makes the package's environment, `reset` gives it a variation as its `set_task` does, `step` is its `step`.
In addition, images are rendered only on request, an episode's scene can be posed again afterwards, and only the run's
step limit ends an episode. Results do not depend on the episodes that the process ran before: tests/metaworld compare
every task with a fresh process and with the unmodified package.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import mujoco
import numpy as np
from metaworld import _encode_task as as_metaworlds
from metaworld.env_dict import ALL_V3_ENVIRONMENTS

from services.metaworld.drawing import ModelRenderer
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
        self._drawing: ModelRenderer | None = None
        self._seed = 0
        self._start_data: mujoco.MjData | None = None  # the state after `reset`
        self._rendered_data: mujoco.MjData | None = None  # the state that is rendered; None before the first reset

    @property
    def instruction(self) -> str:
        return self.task.instruction

    def load_task(self, task: Task, seed: int = 0) -> None:
        """Create the task's environment unless it is loaded; `start` samples with `seed`."""
        self._seed = seed
        if self.task is not None and self.task.name == task.name:
            self.task = task
            return
        self._drop()
        memory.give_back()  # before the next scene is loaded
        self._class = ALL_V3_ENVIRONMENTS[task.name]
        env = self._class()
        env.model.camera("corner2").pos = CORNER2
        env.max_path_length = sys.maxsize  # it raises after 500 steps; the run's limit applies instead
        self._env, self.task = env, task
        self._model, self._data = env.model, env.data
        self._posed = mujoco.MjData(env.model)  # posed by `show` and `restore`
        self._drawing = ModelRenderer(env.model, self.camera_size)

    def start(self, episode: int) -> np.ndarray:
        """Return the vector that the task's environment samples when seeded, as in LeRobot's adapter.

        The fifty variations are sampled differently, from numpy's global generator.
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
            self._rendered_data = None

    def _vary(self, vector: np.ndarray) -> None:
        task_data = {"env_cls": self._class, "rand_vec": vector, "partially_observable": False}
        self._env.set_task(as_metaworlds(self.task.name, task_data))

    def reset(self, episode: int, init_state: np.ndarray) -> None:
        """Start an episode at a variation: float64 [3 or 6], the positions of objects and goal. `episode` is unused."""
        env = self._require_task()
        space = env._random_reset_space
        vector = checked_vector(init_state, space.shape[0], f"variation of {self.task.name}")
        if not space.contains(vector):
            raise ValueError(
                f"variation {vector} is outside the space of {self.task.name}; does it belong to another task?"
            )
        self._vary(vector)
        self._seen, _ = env.reset()
        self._steps = 0
        self._start_data = copy.copy(self._data)
        self._rendered_data = self._data

    def step(self, action: np.ndarray) -> bool:
        """Execute one action, finite [4], for 12.5 ms; return whether metaworld counts the task as solved."""
        env = self._require_episode()
        action = checked_vector(action, 4, "action", np.float32)
        self._seen, _, _, _, info = env.step(action)
        self._steps += 1
        self._rendered_data = self._data
        return bool(info["success"])

    def render(self, camera: str) -> np.ndarray:
        """Return a camera's image: uint8 [size, size, 3], bottom row first.

        corner2 is upside down in metaworld's scenes; its image is rotated by 180°, as in LeRobot's adapter.
        """
        self._require_episode()
        image = self._drawing.draw(camera, self._rendered_data)
        return np.ascontiguousarray(image[::-1, ::-1]) if camera == "corner2" else image

    def state(self) -> np.ndarray:
        """Return LeRobot's agent_pos: float32 [4], hand position (m) and gripper opening (0 to 1)."""
        self._require_episode()
        return self._seen[:4].astype(np.float32)

    def sim_state(self) -> np.ndarray:
        """Return the number of steps and MuJoCo's integration state: float64."""
        self._require_episode()
        return np.concatenate([[float(self._steps)], self._get(self._data, STATE)])

    def restore(self, sim_state: np.ndarray) -> None:
        """Pose the scene as at `sim_state` of this episode, for rendering; the episode itself does not change."""
        self._require_episode()
        state = checked_vector(sim_state, 1 + mujoco.mj_stateSize(self._model, STATE), f"state of {self.task.name}")
        self._pose(state, STATE)

    def view(self) -> np.ndarray:
        """Return the rendered state: the number of steps and the pose, float64."""
        self._require_episode()
        now = self._rendered_data
        steps = 0.0 if now is self._start_data else float(self._steps) if now is self._data else self._posed_steps
        return np.concatenate([[steps], self._get(now, POSE)])

    def show(self, view: np.ndarray) -> None:
        """Pose the scene as in `view` of this episode."""
        self._require_episode()
        view = checked_vector(view, 1 + mujoco.mj_stateSize(self._model, POSE), f"view of {self.task.name}")
        self._pose(view, POSE)

    def _pose(self, state: np.ndarray, which: mujoco.mjtState) -> None:
        """At step 0, use the state after metaworld's reset: it does not follow from the pose alone."""
        if state[0] == 0:
            self._rendered_data = self._start_data
            return
        mujoco.mj_setState(self._model, self._posed, np.ascontiguousarray(state[1:]), which)
        mujoco.mj_kinematics(self._model, self._posed)  # this and the next two: all that is rendered
        mujoco.mj_comPos(self._model, self._posed)
        mujoco.mj_camlight(self._model, self._posed)
        self._posed_steps, self._rendered_data = float(state[0]), self._posed

    def _get(self, data: mujoco.MjData, which: mujoco.mjtState) -> np.ndarray:
        state = np.empty(mujoco.mj_stateSize(self._model, which))
        mujoco.mj_getState(self._model, data, state, which)
        return state

    def fixture_poses(self) -> dict[str, np.ndarray]:
        """Return what a variation moves outside the simulator's state: bodies, sites and the goal."""
        self._require_episode()
        return {
            "bodies": self._model.body_pos.ravel().copy(),
            "sites": self._model.site_pos.ravel().copy(),
            "goal": np.array(self._env._target_pos, np.float64),
        }

    def privileged(self, first: bool) -> dict[str, Any]:
        """Return the input of metaworld's experts: the task's name and its observation [39] with the goal."""
        self._require_episode()
        return {"task": self.task.name, "observation": np.array(self._seen, np.float64)}

    def close(self) -> None:
        """Free the simulation and the renderer."""
        self._drop()

    def _drop(self) -> None:
        if self._drawing is not None:
            self._drawing.free()
        if self._env is not None:
            self._env.close()
        self._drawing = self._env = self.task = self._rendered_data = None

    def _require_task(self):
        if self._env is None:
            raise RuntimeError("no task is loaded; call load_task() first")
        return self._env

    def _require_episode(self):
        if self._rendered_data is None:
            raise RuntimeError("no episode has started; call load_task() and then reset()")
        return self._env


def checked_vector(value: Any, size: int, label: str, dtype: type = np.float64) -> np.ndarray:
    """Return `value` as a finite vector [size]; raise ValueError if it is not one."""
    vector = np.asarray(value, dtype)
    if vector.shape != (size,) or not np.isfinite(vector).all():
        raise ValueError(f"{label} must be a finite vector of {size} numbers, got shape {vector.shape}")
    return vector
