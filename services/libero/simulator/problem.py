"""Build LIBERO's problem objects. Imports MuJoCo: import it only after `runtime.configure`."""

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
class LiberoProblem:
    """A task's problem object, a snapshot of its compiled model, and its arm controller."""

    domain: object
    pristine: ModelSnapshot
    control: ArmControl

    def resets(self, seed: int, seed_each: bool = False, extra_resets: int = 0) -> ResetReplay:
        """Return the resets of a reference loop seeded with `seed`, once or per episode."""
        return ResetReplay(self.domain, self.pristine, seed, seed_each, extra_resets)


def build(task: Task, robot: str = "") -> LiberoProblem:
    """Return the problem of `task` with an arm of robots.py, without renderer, cameras and stock observations.

    Raises ValueError if the task's file is missing or the arm is unknown, RuntimeError if no initial layout can be
    sampled.
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
                f"no valid layout of {task.name} in {_BUILD_TRIES} attempts; are objects larger than their regions?"
            )
        pristine.restore(domain.sim.model._model)
        domain.sim.reset()
        domain.sim.forward()
        domain.robots[0].reset()
    _forget_parsed()
    return LiberoProblem(domain, pristine, ArmControl(domain))


def _forget_parsed() -> None:
    """Free the last parsed scene, which MuJoCo keeps for mj_saveLastXML with its textures."""
    mujoco.MjModel.from_xml_string("<mujoco/>")


def _construct(task: Task, path: str, robot: str):
    """Return (problem object, snapshot of its model before the constructor's own reset changed it)."""
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
