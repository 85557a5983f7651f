"""Builds LIBERO's problem objects. Imports MuJoCo: import it only after `runtime.configure`."""

from dataclasses import dataclass

import mujoco
import numpy as np
from libero.libero.envs import TASK_MAPPING, bddl_utils
from robosuite import load_controller_config
from robosuite.utils.errors import RandomizationError

from services.libero.simulator import plus_scenes, pro_objects, problem_files, robots
from services.libero.simulator.control import ArmControl
from services.libero.simulator.resets import ModelSnapshot, ResetReplay, global_rng
from services.libero.simulator.suites import Task

_BUILD_TRIES = 20

pro_objects.register()
plus_scenes.register()


@dataclass
class Problem:
    """A task's problem object, its model as compiled, and what drives and resets it."""

    domain: object
    pristine: ModelSnapshot
    control: ArmControl

    def resets(self, seed: int, seed_each: bool = False, extra_resets: int = 0) -> ResetReplay:
        """Returns the resets of the reference loop that seeds with `seed`, once or before each."""
        return ResetReplay(self.domain, self.pristine, seed, seed_each, extra_resets)


def build(task: Task, robot: str = "") -> Problem:
    """Returns `task`'s problem with an arm of robots.py, without renderer, cameras or stock observations being used.

    Raises ValueError when the task's file is missing or there is no such arm, RuntimeError when no initial layout can
    be drawn.
    """
    path = problem_files.path_of(task)
    with global_rng(np.random.RandomState(0).get_state()):
        for _ in range(_BUILD_TRIES):
            try:
                domain, pristine = _construct(task, path, robot)
                break
            except RandomizationError:
                continue
        else:
            raise RuntimeError(
                f"no layout for {task.name} in {_BUILD_TRIES} tries; are objects larger than their regions?"
            )
        pristine.restore(domain.sim.model._model)
        domain.sim.reset()
        domain.sim.forward()
        domain.robots[0].reset()
    _forget_parsed()
    return Problem(domain, pristine, ArmControl(domain))


def _forget_parsed() -> None:
    """Frees what MuJoCo keeps of the scene parsed last, for mj_saveLastXML: as much as its textures take."""
    mujoco.MjModel.from_xml_string("<mujoco/>")


def _construct(task: Task, path: str, robot: str):
    """Returns (problem object, its model before the constructor's own reset wrote into it)."""
    problem, scene, posture = TASK_MAPPING[bddl_utils.get_problem_info(path)["problem_name"]], {}, 0
    if task.disturbance is not None:
        problem, scene = plus_scenes.seen_from_elsewhere(problem, task.disturbance), plus_scenes.options(task)
        posture = task.disturbance.posture
    domain, pristine = problem.__new__(problem), []

    def first_reset():
        pristine.append(ModelSnapshot.take(domain.sim.model._model))
        del domain._reset_internal
        domain._reset_internal()

    domain._reset_internal = first_reset
    domain.__init__(
        path,
        robots=[robots.panda(robot, posture)],
        controller_configs=load_controller_config(default_controller="OSC_POSE"),
        gripper_types="default",
        initialization_noise=None,
        use_camera_obs=False,
        has_renderer=False,
        has_offscreen_renderer=False,
        control_freq=20,
        horizon=1000,
        ignore_done=True,
        hard_reset=False,
        **scene,
    )
    return domain, pristine[0]
