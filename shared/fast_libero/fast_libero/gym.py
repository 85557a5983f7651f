"""LIBERO's tasks as Gymnasium environments, such as `gymnasium.make("fast_libero/libero_goal-v0", task=3)`.

Importing this module registers `fast_libero/<suite>-v0` for each suite.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict

STATE = {"robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_gripper_qpos": 2}  # metres; (x, y, z, w); metres
# Most steps of an episode: those of OpenVLA's evaluation, on which its published results rest.
MAX_STEPS = {"libero_spatial": 220, "libero_object": 280, "libero_goal": 300, "libero_10": 520, "libero_90": 400}


class LiberoEnv(gymnasium.Env[dict[str, np.ndarray], np.ndarray]):  # type: ignore[misc]
    """One task. An observation holds each camera's `<camera>_image` and `STATE`, as LIBERO has them.

    Images are uint8 [size, size, 3], bottom row first; `render` returns the first camera's with the top row first. An
    action is float32 [7] from -1 to 1: position and rotation (5 cm and 0.5 rad are 1) and gripper (-1 opens, 1
    closes). The reward is 1.0 when the task is done, which ends the episode.

    LIBERO is imported and the scene is built at the first reset: a vector environment builds one in each process.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012  gymnasium's

    def __init__(
        self,
        suite: str,
        task: int = 0,
        cameras: Sequence[str] = ("agentview", "robot0_eye_in_hand"),
        size: int = 256,
        render_mode: str | None = None,
    ):
        self.suite, self.task, self.cameras, self.size = suite, task, tuple(cameras), size
        self.render_mode = render_mode
        images = {f"{camera}_image": Box(0, 255, (size, size, 3), np.uint8) for camera in self.cameras}
        state = {name: Box(-np.inf, np.inf, (length,), np.float64) for name, length in STATE.items()}
        self.observation_space = Dict({**images, **state})
        self.action_space = Box(-1, 1, (7,), np.float32)
        self._env: Any = None
        self._rng: Any = None  # the state of LIBERO's generator, which is numpy's global one

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Start an episode at `options["init_state"]`, or at one that the environment's generator chooses.

        What is random depends on the environment's seed alone. Raises IndexError for a missing task or init state.
        """
        super().reset(seed=seed)
        if self._env is None:
            self._build()
        if seed is not None or self._rng is None:
            self._rng = np.random.RandomState(int(self.np_random.integers(2**31))).get_state()
        chosen = int(self.np_random.integers(len(self._init_states)))
        number = int((options or {}).get("init_state", chosen))
        from fast_libero.resets import global_rng  # imports MuJoCo, which LIBERO's start-up sets up

        with global_rng(self._rng):
            self._env.reset()
            self._rng = np.random.get_state()
        self._last = self._env.set_init_state(self._init_states[number])
        return self._observation(), {"is_success": False, "init_state": number, "instruction": self.instruction}

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """Execute one action, 50 ms."""
        self._last, reward, done, _ = self._env.step(action)
        return self._observation(), float(reward), bool(done), False, {"is_success": bool(done)}

    def render(self) -> np.ndarray | None:
        """Return what the first camera sees: uint8 [size, size, 3], top row first; None without a render mode."""
        if self.render_mode is None:
            return None
        return np.ascontiguousarray(self._last[f"{self.cameras[0]}_image"][::-1])

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    def _build(self) -> None:
        from fast_libero import OffScreenRenderEnv, get_benchmark, get_libero_path
        from fast_libero.resets import global_rng

        suite = get_benchmark(self.suite)()
        if not 0 <= self.task < suite.n_tasks:
            raise IndexError(f"task {self.task} not found; {self.suite} has 0 to {suite.n_tasks - 1}")
        task = suite.get_task(self.task)
        self.instruction = task.language
        self._init_states = suite.get_task_init_states(self.task)
        with global_rng(np.random.RandomState(0).get_state()):
            self._env = OffScreenRenderEnv(
                bddl_file_name=str(Path(get_libero_path("bddl_files")) / task.problem_folder / task.bddl_file),
                camera_names=list(self.cameras),
                camera_heights=self.size,
                camera_widths=self.size,
                horizon=2**31,  # episodes end by gymnasium's limit
            )

    def _observation(self) -> dict[str, np.ndarray]:
        return {name: self._last[name] for name in self.observation_space.spaces}


for _suite, _steps in MAX_STEPS.items():
    gymnasium.register(f"fast_libero/{_suite}-v0", LiberoEnv, max_episode_steps=_steps, kwargs={"suite": _suite})
