"""The random part of LIBERO's resets, replayed without physics so that episode k needs no episodes before it.

The reference loop seeds numpy's global generator once per task and then resets once per episode. Each reset draws, in
this order: one noise sample per arm joint (scaled by zero, but drawn), the opening of drawers and knobs that the task
starts with, and the place of every fixture and object. Objects end where the init state puts them; fixtures stay where
they were drawn. Two traits of the original must be kept or the stream of draws shifts:

- every reset rebuilds the model and appends the drawer samplers to a list that is never cleared, so reset k draws
  each of them k + 2 times (the constructor built the model once already);
- a drawn layout can be impossible; the wrapper then resets again, which appends once more.
"""

from contextlib import contextmanager
from dataclasses import dataclass

import mujoco
import numpy as np

_TRIES = 1000  # the original tries for ever


@contextmanager
def global_rng(state=None):
    """Lends numpy's global generator, set to `state` where one is given, and gives it back as it was."""
    before = np.random.get_state()
    try:
        if state is not None:
            np.random.set_state(state)
        yield
    finally:
        np.random.set_state(before)


@dataclass
class ModelSnapshot:
    """The parts of a freshly compiled model that LIBERO's resets, predicates and visuals write into."""

    body_pos: np.ndarray  # [nbody, 3]
    body_quat: np.ndarray  # [nbody, 4]
    site_rgba: np.ndarray  # [nsite, 4]

    @classmethod
    def take(cls, model) -> "ModelSnapshot":
        return cls(model.body_pos.copy(), model.body_quat.copy(), model.site_rgba.copy())

    def restore(self, model) -> None:
        model.body_pos[:] = self.body_pos
        model.body_quat[:] = self.body_quat
        model.site_rgba[:] = self.site_rgba


@dataclass(frozen=True)
class FixturePose:
    """Where one reset put a fixture: position [3] in metres, quaternion [4] as MuJoCo's (w, x, y, z)."""

    body: int
    pos: np.ndarray
    quat: np.ndarray


@dataclass(frozen=True)
class Layout:
    """How one reset left the scene.

    `warmstart` float64 [nv]: accelerations from which MuJoCo's next solve starts. Every forward pass of a reset leaves
    its mark there, and the solver's last bits depend on it. `start` float64 [1 + nq + nv]: the state (time, qpos, qvel)
    with all objects where they were drawn, which an init state overwrites.
    """

    fixtures: tuple[FixturePose, ...]
    warmstart: np.ndarray
    start: np.ndarray

    def apply(self, model, data) -> None:
        """Puts fixtures and warm start into place."""
        _place(self.fixtures, model)
        data.qacc_warmstart[:] = self.warmstart


def _place(fixtures: tuple[FixturePose, ...], model) -> None:
    for pose in fixtures:
        model.body_pos[pose.body] = pose.pos
        model.body_quat[pose.body] = pose.quat


@dataclass(frozen=True)
class _Point:
    """The generator before a reset, and how often the model had been built by then."""

    rng: tuple
    builds: int


class ResetReplay:
    """Replays the resets of one task's reference loop, remembering the generator at every episode it has passed.

    The loop seeds once, or with `seed_each` before every reset, with `seed` and the episode's number. `extra_resets`
    came before: each has built the model once more (an impossible layout among them, drawn from no known seed, again).
    """

    def __init__(self, domain, pristine: ModelSnapshot, seed: int, seed_each: bool = False, extra_resets: int = 0):
        self._domain, self._pristine = domain, pristine
        self._seed, self._seed_each = seed, seed_each
        self._openings = tuple(domain.object_property_initializers)
        self._points = [_Point(np.random.RandomState(seed).get_state(), builds=1 + extra_resets)]
        self._layouts: dict[int, Layout] = {}
        self._warm = self._warmstart_of_build()

    def layout(self, episode: int) -> Layout:
        """Returns the layout of episode `episode` (from 0). The first time, the domain's simulation is written into.

        Raises ValueError for a negative episode.
        """
        if episode < 0:
            raise ValueError(f"episode {episode} is negative; the first one is 0")
        if episode not in self._layouts:
            while len(self._points) <= episode:
                _, after = self._reset(self._points[-1])
                self._points.append(self._seeded(after))
            placed, _ = self._reset(self._points[episode])
            self._layouts[episode] = self._settle(placed)
        return self._layouts[episode]

    def _seeded(self, after: _Point) -> _Point:
        """Returns the point before the next episode's reset."""
        if not self._seed_each:
            return after
        return _Point(np.random.RandomState(self._seed + len(self._points)).get_state(), after.builds)

    def _warmstart_of_build(self) -> np.ndarray:
        """Returns the warm start after the passes before the draws: model, render context, twice the controller."""
        self._rewind()
        self._domain.sim.forward()
        self._domain.sim.forward()
        self._pose_arm()
        self._domain.sim.forward()
        self._domain.sim.forward()
        return self._domain.sim.data.qacc_warmstart.copy()

    def _rewind(self) -> None:
        self._pristine.restore(self._domain.sim.model._model)
        self._domain.sim.reset()

    def _pose_arm(self) -> None:
        robot = self._domain.robots[0]
        self._domain.sim.data.qpos[robot._ref_joint_pos_indexes] = robot.init_qpos

    def _reset(self, point: _Point) -> tuple[dict, _Point]:
        """Returns (what was placed where, the generator afterwards), drawing again while a layout is impossible."""
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
        raise RuntimeError(f"no layout in {_TRIES} tries; are the assets' objects larger than the task's regions?")

    def _sample(self, builds: int) -> dict:
        domain = self._domain
        robot = domain.robots[0]
        np.random.randn(len(robot.init_qpos))
        self._rewind()
        self._pose_arm()
        domain.sim.data.qpos[robot._ref_gripper_joint_pos_indexes] = robot.gripper.init_qpos
        for opening in self._openings * builds:
            domain.object_states_dict[opening.name].set_joint(opening.sample())
        mujoco.mj_kinematics(domain.sim.model._model, domain.sim.data._data)  # samplers ask where drawers' sites are
        placed = domain.placement_initializer.sample()
        placed = domain.conditional_placement_initializer.sample(domain.sim, placed)
        return domain.conditional_placement_on_objects_initializer.sample(placed)

    def _settle(self, placed: dict) -> Layout:
        """Returns the layout that a reset's last forward pass leaves, with everything where it was drawn."""
        sim, fixtures = self._domain.sim, []
        for pos, quat, obj in placed.values():
            if obj.name in self._domain.fixtures_dict:
                fixtures.append(FixturePose(sim.model.body_name2id(obj.root_body), np.array(pos), np.array(quat)))
            else:
                sim.data.set_joint_qpos(obj.joints[-1], np.concatenate([np.array(pos), np.array(quat)]))
        _place(tuple(fixtures), sim.model._model)
        sim.data.qacc_warmstart[:] = self._warm
        sim.forward()
        return Layout(tuple(fixtures), sim.data.qacc_warmstart.copy(), sim.get_state().flatten())
