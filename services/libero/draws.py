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
from dataclasses import dataclass, field

import mujoco
import numpy as np


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


@dataclass
class _Point:
    """The generator before a reset, and how often the model had been built by then."""

    rng: tuple
    builds: int


@dataclass
class ResetDraws:
    """Replays the resets of one task's reference loop, remembering the generator at every episode it has passed."""

    domain: object
    pristine: ModelSnapshot
    seed: int
    _points: list[_Point] = field(default_factory=list)
    _fixtures: dict[int, tuple[FixturePose, ...]] = field(default_factory=dict)

    def __post_init__(self):
        self._openings = tuple(self.domain.object_property_initializers)
        self._points = [_Point(np.random.RandomState(self.seed).get_state(), builds=1)]

    def fixtures(self, episode: int) -> tuple[FixturePose, ...]:
        """Returns the fixture poses of episode `episode` (from 0), writing into the domain's simulation as it draws."""
        while episode not in self._fixtures:
            index = min(episode, len(self._points) - 1)
            self._fixtures[index] = self._replay(index)
        return self._fixtures[episode]

    def _replay(self, index: int) -> tuple[FixturePose, ...]:
        from robosuite.utils.errors import RandomizationError

        point = self._points[index]
        builds = point.builds
        with global_rng(point.rng):
            while True:
                builds += 1
                try:
                    drawn = self._draw(builds)
                    break
                except RandomizationError:
                    continue
            after = _Point(np.random.get_state(), builds)
        if index + 1 == len(self._points):
            self._points.append(after)
        return drawn

    def _draw(self, builds: int) -> tuple[FixturePose, ...]:
        domain, model = self.domain, self.domain.sim.model._model
        robot = domain.robots[0]
        np.random.randn(len(robot.init_qpos))
        self.pristine.restore(model)
        domain.sim.reset()
        domain.sim.data.qpos[robot._ref_joint_pos_indexes] = robot.init_qpos
        domain.sim.data.qpos[robot._ref_gripper_joint_pos_indexes] = robot.gripper.init_qpos
        for opening in self._openings * builds:
            domain.object_states_dict[opening.name].set_joint(opening.sample())
        mujoco.mj_kinematics(model, domain.sim.data._data)  # samplers ask where drawers' sites are
        placed = domain.placement_initializer.sample()
        placed = domain.conditional_placement_initializer.sample(domain.sim, placed)
        placed = domain.conditional_placement_on_objects_initializer.sample(placed)
        return tuple(
            FixturePose(domain.sim.model.body_name2id(obj.root_body), np.array(pos, float), np.array(quat, float))
            for pos, quat, obj in placed.values()
            if obj.name in domain.fixtures_dict
        )
