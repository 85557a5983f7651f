"""One LIBERO environment, reused over tasks and episodes: bit-identical to the stock loop, and faster.

The stock loop (`OffScreenRenderEnv`: seed once per task, then reset and set_init_state per episode) rebuilds the model
at every reset, solves the dynamics three times per physics step and renders every camera at every step. `LiberoEnv`
runs the same problem classes with identical results; tests/libero compare the two.

The stock loop's observations lag: its sensors sample once per 25 physics steps at a phase that the two forced updates
of reset and set_init_state shift to step 24, and they read poses computed before that step's integration. Images and
`state()` here are sampled at the same point.
"""

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from services.libero.simulator import noise, privileged, runtime, shuffled
from services.libero.simulator.suites import Task
from vla_common import memory

SUBSTEPS = 25  # 20 Hz control over 2 ms physics
_PHYSICS_DT, _SAMPLE_DT = 0.002, 0.05


class LiberoEnv:
    """A LIBERO problem, stepped by actions. Call `runtime.configure` in this process first."""

    def __init__(self, assets, cameras=("agentview",), camera_size: int = 256, render: str | None = None):
        active = runtime.active()
        if Path(assets).resolve() != active.assets:
            raise ValueError(f"this process is configured for assets {active.assets}, not {assets}")
        if render is not None and render != active.render:
            raise ValueError(f"this process is configured for render {active.render!r}, not {render!r}")
        self.cameras, self.camera_size = tuple(cameras), camera_size
        self.task: Task | None = None
        self.robot = ""  # of the loaded task
        self.domain = None  # robosuite's problem; its own observations, controller and step count are unused
        self._image_qpos = None  # the pose to render; None before the first reset
        self._moment = (0, 0)  # episode, step
        self._renderer = None
        self._gl = None

    @property
    def instruction(self) -> str:
        return self.task.instruction

    def load_task(
        self, task: Task, seed: int = 0, seed_each: bool = False, extra_resets: int = 0, robot: str = "",
        vary: Collection[str] = (),
    ) -> None:  # fmt: skip
        """Build `task` unless it is loaded, and rewind its stream of resets to `seed`.

        With `seed_each`, episode k is seeded with `seed` + k. `extra_resets` precede the first episode. `robot` is one
        of robots.py. `vary` names what of `variation.VARIATIONS` is random in every episode, by the seed.
        """
        self._vary = vary
        if (self.task, self.robot) != (task, robot):
            from services.libero.simulator import problem  # imports MuJoCo: only after runtime.configure

            self._drop_task()  # before the next scene is built: two at once determine a worker's peak memory
            self._problem = problem.build(task, robot)
            memory.trim()  # free what the build used
            self.domain, self.task, self.robot = self._problem.domain, task, robot
            self._control, self._resets = self._problem.control, {}
            sim, arm = self.domain.sim, self.domain.robots[0]
            self._model, self._data = sim.model._model, sim.data._data
            self._gripper_qpos = np.array(arm._ref_gripper_joint_pos_indexes)
            self._grip_site = arm.eef_site_id
            self._hand_body = sim.model.body_name2id(arm.robot_model.eef_name)
            self._vis_names = {
                obj.name: dict(obj.object_properties["vis_site_names"])
                for obj in (*self.domain.objects, *self.domain.fixtures)
                if obj.object_properties["vis_site_names"]
            }
            glows = [name for sites in self._vis_names.values() for name, _ in sites.values()]
            self._vis_sites = np.array([sim.model.site_name2id(name) for name in glows], dtype=int)
        self._draws = (seed, seed_each, extra_resets)
        if self._draws not in self._resets:  # demonstrations have one seed each: keep only the latest
            self._resets = {self._draws: self._problem.resets(*self._draws)}

    def reset(self, episode: int, init_state: np.ndarray) -> None:
        """Start episode `episode` (from 0) at `init_state`: float64 [1 + nq + nv], as (time, qpos, qvel); or [0] for a
        start sampled by the placement; or [3 n], the places of a shuffled task.

        The scene is bit-identical to that of the reference loop after seeding, `episode + 1` resets and
        `set_init_state`; earlier episodes need not have run. Raises ValueError for a state of the wrong size.
        """
        task = self._require_task()
        if task.kind == shuffled.KIND:
            layout = self._arranged(init_state)
            init_state = layout.start
        else:
            is_sampled = np.size(init_state) == 0 and task.init_states_path is None
            init_state = self.start(episode) if is_sampled else self._checked_state(init_state)
            layout = self._resets[self._draws].layout(episode)
        self._problem.pristine.restore(self._model)
        if self._vary:
            from services.libero.simulator import variation  # imports MuJoCo

            variation.apply(self._model, self._vary, self._draws[0] + episode)
        self.domain.sim.reset()
        layout.apply(self._model, self._data)
        self._control.reset()
        for name, sites in self._vis_names.items():
            self.domain.get_object(name).object_properties["vis_site_names"].update(sites)
        self.domain.visualize(vis_settings={vis: False for vis in self.domain._visualizations})
        self._set_state(init_state)
        self._since_sample = _PHYSICS_DT + _PHYSICS_DT  # the two forced updates of reset and set_init_state
        self._sampled = True
        self._moment = (episode, 0)

    def start(self, episode: int) -> np.ndarray:
        """Return the state, float64 [1 + nq + nv], after the reference loop's reset for `episode` (from 0).

        LIBERO's placement samples it; `reset` accepts it as an init state. The suites' init states come from files.
        Of a shuffled task: places, float64 [3 n], by the seed plus `episode`.
        """
        task = self._require_task()
        if task.kind == shuffled.KIND:
            return np.array(shuffled.to_row(shuffled.draw(task, self._draws[0] + episode)))
        return self._resets[self._draws].layout(episode).start.copy()

    def _arranged(self, row: np.ndarray) -> Any:
        """Return the `SceneLayout` of a shuffled task with everything at the places [3 n] of `row`."""
        task = self._require_task()
        bddl = task.bddl()
        names, places = list(shuffled.placed(bddl)), np.asarray(row, np.float64)
        if places.shape != (3 * len(names),):
            raise ValueError(
                f"start of {task.name} must have shape ({3 * len(names)},), got {places.shape}; "
                "does it belong to another task?"
            )
        shuffled.arrange(self.domain, bddl, dict(zip(names, places.reshape(-1, 3).tolist(), strict=True)))
        return self._problem.resets(*self._draws).layout(0)

    def _require_task(self) -> Task:
        if self.task is None:
            raise RuntimeError("no task is loaded; call load_task() first")
        return self.task

    def _require_episode(self) -> None:
        if self._image_qpos is None:
            raise RuntimeError("no episode has started; call load_task() and then reset()")

    def _checked_state(self, state) -> np.ndarray:
        state = np.asarray(state, np.float64)
        size = 1 + self._model.nq + self._model.nv
        if state.shape != (size,):
            raise ValueError(
                f"init state of {self.task.name} must have shape ({size},), got {state.shape}; "
                "does it belong to another task?"
            )
        return state

    def _set_state(self, state: np.ndarray) -> None:
        self.domain.sim.set_state_from_flattened(state)
        self.domain.sim.forward()
        self.domain._check_success()
        self.domain._post_process()
        self._visuals_due = False
        self._image_qpos = self._data.qpos.copy()
        self._sample_proprio()

    def step(self, action) -> bool:
        """Execute one control step (50 ms) and return whether the task's goal holds. `action`: finite [7]."""
        self._require_episode()
        action = np.asarray(action, np.float64)
        if action.shape != (7,) or not np.isfinite(action).all():
            raise ValueError(f"action must be a finite vector of 7 numbers, got {action}")
        if self._visuals_due:  # update the burners' glow to the last step: stock images show it one step late
            self.domain._post_process()
            self._visuals_due = False
        goal, gripper = action[:6], float(action[6])
        for _ in range(SUBSTEPS):
            samples = self._sample_now()
            if samples:
                self._image_qpos = self._data.qpos.copy()
            self._control.substep(goal, gripper)
            goal = None
            if samples:
                self._sample_proprio()
        self._visuals_due = True
        self._moment = (self._moment[0], self._moment[1] + 1)
        return self.success()

    def _sample_now(self) -> bool:
        """Advance the stock sensors' clock by one physics step, in their arithmetic; return whether they sample."""
        self._since_sample += _PHYSICS_DT
        samples = not self._sampled and self._since_sample <= _SAMPLE_DT
        if samples:
            self._sampled = True
        if self._since_sample >= _SAMPLE_DT:
            samples = samples or not self._sampled
            self._since_sample %= _SAMPLE_DT
            self._sampled = False
        return samples

    def _sample_proprio(self) -> None:
        data = self._data
        self._eef_pos = data.site_xpos[self._grip_site].copy()
        self._eef_quat = data.xquat[self._hand_body][[1, 2, 3, 0]]
        self._fingers = data.qpos[self._gripper_qpos]

    def success(self) -> bool:
        """Return whether the task's goal holds in the current state."""
        return bool(self.domain._check_success())

    def render(self, camera: str = "agentview") -> np.ndarray:
        """Return `camera`'s image as the stock `<camera>_image`: uint8 [size, size, 3], bottom row first."""
        self._require_episode()
        number = self.domain.sim.model.camera_name2id(camera)
        is_first = self._renderer is None
        if is_first:
            from fast_libero.rendering.renderer import GlContext, SceneRenderer

            runtime.require_rendering()
            self._gl = self._gl or GlContext()
            self._gl.make_current()
            runtime.warn_if_slow(self._gl.renderer)
            self._renderer = SceneRenderer(self._gl, self._model, self.camera_size)
        image = self._renderer.render(number, self._image_qpos)
        if is_first:
            memory.trim()  # free the buffers of textures and meshes uploaded to OpenGL
        return image

    def sense(self, camera: str, image: np.ndarray) -> np.ndarray:
        """Return this step's `image` as the task's sensor delivers it: uint8 [size, size, 3].

        LIBERO-plus's noise is seeded by the seed, the episode and the step.
        """
        disturbance = self.task.disturbance
        if disturbance is None or camera != noise.CAMERA:
            return image
        seed, *_ = self._draws
        return noise.disturb(image, disturbance.noise, np.random.RandomState([seed, *self._moment]))

    def state(self) -> np.ndarray:
        """Return the proprioception of OpenVLA's and openpi's loops: float32 [8].

        Gripper-site position [3] in metres, the hand's axis-angle [3] in radians, both finger joints [2] in metres.
        """
        return np.concatenate([self._eef_pos, quat_xyzw_to_axis_angle(self._eef_quat), self._fingers]).astype(
            np.float32
        )

    def sim_state(self) -> np.ndarray:
        """Return the simulator's state: float64 [1 + nq + nv] as (time, qpos, qvel)."""
        return self.domain.sim.get_state().flatten()

    def privileged(self, first: bool) -> dict[str, Any]:
        """Return the true state from `privileged.observe`; with `first`, including the static part."""
        return privileged.observe(self.domain, static=first)

    def fixture_poses(self) -> dict[str, np.ndarray]:
        """Return each fixture's pose: float64 [7], position and (w, x, y, z) quaternion."""
        model, ids = self._model, self.domain.obj_body_id
        return {
            name: np.concatenate([model.body_pos[ids[name]], model.body_quat[ids[name]]])
            for name in self.domain.fixtures_dict
        }

    @property
    def moves_fixtures(self) -> bool:
        """Whether the task's starts have fixtures at different places."""
        moves = self._require_task().kind == shuffled.KIND
        return moves and any(name.startswith(shuffled.FIXTURES) for name in self.fixture_poses())

    def restore(self, sim_state: np.ndarray) -> None:
        """Pose the scene as in `sim_state` (from `sim_state()` of this episode), to render it afterwards."""
        self._set_state(self._checked_state(sim_state))

    def view(self) -> np.ndarray:
        """Return the rendered state: float64 [nq + sites], the pose and the opacity of each burner's glow."""
        self._require_episode()
        return np.concatenate([self._image_qpos, self._model.site_rgba[self._vis_sites, 3]])

    def show(self, view: np.ndarray) -> None:
        """Pose the scene as in `view` (from `view()` of this episode); images are bit-identical."""
        self._require_episode()
        expected = (self._model.nq + len(self._vis_sites),)
        if view.shape != expected:
            raise ValueError(f"view of {self.task.name} must have shape {expected}, got {view.shape}")
        self._image_qpos = view[: self._model.nq].copy()
        self._model.site_rgba[self._vis_sites, 3] = view[self._model.nq :]
        self._visuals_due = False

    def close(self) -> None:
        """Free the simulation and the GL context."""
        self._drop_task()
        if self._gl is not None:
            self._gl.free()
            self._gl = None

    def _drop_task(self) -> None:
        if self._renderer is not None:
            self._renderer.free()
            self._renderer = None
        if self.domain is not None:
            self.domain.close()
            self.domain = self.task = self._problem = self._image_qpos = None
            self._control = self._model = self._data = None
            self._resets = {}
            memory.give_back()


def quat_xyzw_to_axis_angle(quat: np.ndarray) -> np.ndarray:
    """Return the rotation vector [3] in radians of a unit quaternion (x, y, z, w), as robosuite computes it."""
    w = min(max(float(quat[3]), -1.0), 1.0)
    sine = math.sqrt(1.0 - w * w)
    if math.isclose(sine, 0.0):
        return np.zeros(3)
    return quat[:3] * 2.0 * math.acos(w) / sine
