"""Replay the random part of LIBERO's resets without physics, so that episode k does not need the earlier ones.

The reference loop seeds numpy's global generator once per task and resets once per episode. Each reset samples, in
this order: one noise value per arm joint (scaled by zero), the initial opening of drawers and knobs, and the position
of every fixture and object. The init state then overwrites the objects' positions, but not the fixtures'. Two
properties of the original must be kept, or the random stream shifts:

- every reset rebuilds the model and appends the drawer samplers to a list that is never cleared, so reset k samples
  each of them k + 2 times (the constructor built the model once already);
- a sampled layout can be impossible; the wrapper then resets again, which appends once more.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

_TRIES = 1000  # the original has no limit


@contextmanager
def global_rng(state: Any = None) -> Iterator[None]:
    """Set numpy's global generator to `state`, if not None, and restore it afterwards."""
    before = np.random.get_state()
    try:
        if state is not None:
            np.random.set_state(state)
        yield
    finally:
        np.random.set_state(before)


class ModelSnapshot:
    """Arrays of a compiled model as they are now, by default those that LIBERO and its variations modify."""

    CHANGED = ("body_pos", "body_quat", "site_rgba", "cam_pos", "cam_quat", "light_pos", "light_diffuse")
    LARGE = ("mesh_", "tex_", "hfield_", "skin_", "bvh_", "oct_", "flex", "name", "text_", "paths")

    def __init__(self, model: Any, names: Iterable[str] = CHANGED):
        self._arrays = {name: getattr(model, name).copy() for name in names}

    @classmethod
    def everything(cls, model: Any) -> "ModelSnapshot":
        """Return a snapshot of every array but those of meshes, textures and names."""
        names = [name for name in dir(model) if not name.startswith(("_", *cls.LARGE))]
        return cls(model, [name for name in names if isinstance(getattr(model, name), np.ndarray)])

    def restore(self, model: Any) -> None:
        for name, values in self._arrays.items():
            getattr(model, name)[:] = values


@dataclass(frozen=True)
class SceneLayout:
    """The scene after one reset.

    `fixtures`: body, position [3] in metres and quaternion [4] (w, x, y, z) of each fixture. `warmstart` float64 [nv]:
    accelerations from which MuJoCo's next solve starts. Every forward pass of a reset changes them, and the last bits
    of the solution depend on them. `start` float64 [1 + nq + nv]: the sampled state (time, qpos, qvel), which an init
    state overwrites.
    """

    fixtures: list[tuple[int, np.ndarray, np.ndarray]]
    warmstart: np.ndarray
    start: np.ndarray

    def apply(self, model: Any, data: Any) -> None:
        """Set the fixtures' poses and the warm start."""
        for body, pos, quat in self.fixtures:
            model.body_pos[body], model.body_quat[body] = pos, quat
        data.qacc_warmstart[:] = self.warmstart


@dataclass(frozen=True)
class _Point:
    """The generator before a reset, and the number of model builds so far."""

    rng: Any
    builds: int


class ResetReplay:
    """Replays the resets of one task's reference loop, storing the generator's state before every episode.

    The loop seeds with `seed` once, or with `seed` + episode before every reset (`seed_each`). Each of the
    `extra_resets` before the first episode has built the model once more (an impossible layout among them, sampled with
    an unknown seed, again).
    """

    def __init__(self, domain: Any, pristine: ModelSnapshot, seed: int, seed_each: bool = False, extra_resets: int = 0):
        self._domain, self._pristine = domain, pristine
        self._seed, self._seed_each = seed, seed_each
        self._initializers = tuple(domain.object_property_initializers)
        self._points = [_Point(np.random.RandomState(seed).get_state(), builds=1 + extra_resets)]
        self._layouts: dict[int, SceneLayout] = {}
        # the warm start after the forward passes before sampling: model, render context, controller twice
        self._rewind()
        domain.sim.forward()
        domain.sim.forward()
        self._pose_arm()
        domain.sim.forward()
        domain.sim.forward()
        self._warm = domain.sim.data.qacc_warmstart.copy()

    def layout(self, episode: int) -> SceneLayout:
        """Return the layout of episode `episode` (from 0). The first call per episode changes the domain's simulation.

        Raises ValueError for a negative episode.
        """
        if episode < 0:
            raise ValueError(f"episode must be at least 0, got {episode}")
        if episode not in self._layouts:
            while len(self._points) <= episode:
                _, after = self._reset(self._points[-1])
                if self._seed_each:
                    rng = np.random.RandomState(self._seed + len(self._points)).get_state()
                    after = _Point(rng, after.builds)
                self._points.append(after)
            placed, _ = self._reset(self._points[episode])
            self._layouts[episode] = self._settle(placed)
        return self._layouts[episode]

    def _rewind(self) -> None:
        self._pristine.restore(self._domain.sim.model._model)
        self._domain.sim.reset()

    def _pose_arm(self) -> None:
        robot = self._domain.robots[0]
        self._domain.sim.data.qpos[robot._ref_joint_pos_indexes] = robot.init_qpos

    def _reset(self, point: _Point) -> tuple[dict[str, Any], _Point]:
        """Return (sampled placements, generator afterwards), resampling impossible layouts."""
        from robosuite.utils.errors import RandomizationError

        builds = point.builds
        with global_rng(point.rng):
            for _ in range(_TRIES):
                builds += 1
                try:
                    placed = self._sample(builds)
                    return placed, _Point(np.random.get_state(), builds)
                except RandomizationError:
                    continue
        raise RuntimeError(
            f"no valid layout in {_TRIES} attempts; are the assets' objects larger than the task's regions?"
        )

    def _sample(self, builds: int) -> Any:
        domain = self._domain
        robot = domain.robots[0]
        np.random.randn(len(robot.init_qpos))
        self._rewind()
        self._pose_arm()
        domain.sim.data.qpos[robot._ref_gripper_joint_pos_indexes] = robot.gripper.init_qpos
        for initializer in self._initializers * builds:
            domain.object_states_dict[initializer.name].set_joint(initializer.sample())
        # samplers read the positions of the drawers' sites
        mujoco.mj_kinematics(domain.sim.model._model, domain.sim.data._data)
        placed = domain.placement_initializer.sample()
        placed = domain.conditional_placement_initializer.sample(domain.sim, placed)
        return domain.conditional_placement_on_objects_initializer.sample(placed)

    def _settle(self, placed: dict[str, Any]) -> SceneLayout:
        """Return the layout after a reset's last forward pass, with everything at its sampled pose."""
        sim, fixtures = self._domain.sim, []
        model = sim.model._model
        for pos, quat, obj in placed.values():
            if obj.name in self._domain.fixtures_dict:
                body = sim.model.body_name2id(obj.root_body)
                model.body_pos[body], model.body_quat[body] = pos, quat
                fixtures.append((body, np.array(pos), np.array(quat)))
            else:
                sim.data.set_joint_qpos(obj.joints[-1], np.concatenate([np.array(pos), np.array(quat)]))
        sim.data.qacc_warmstart[:] = self._warm
        sim.forward()
        return SceneLayout(fixtures, sim.data.qacc_warmstart.copy(), sim.get_state().flatten())
