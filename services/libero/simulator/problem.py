"""Build LIBERO's problem objects. Imports MuJoCo: import it only after `runtime.configure`."""

import os
from dataclasses import dataclass

import mujoco
import numpy as np
from libero.libero.envs import TASK_MAPPING, bddl_utils
from robosuite import load_controller_config
from robosuite.utils.errors import RandomizationError

from fast_libero.control import ArmControl, is_supported
from fast_libero.resets import ModelSnapshot, ResetReplay, global_rng
from services.libero.simulator import plus_scenes, pro, robots, runtime
from services.libero.simulator.suites import Task

_BUILD_TRIES = 20

pro.register_objects()
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


def bddl_path(task: Task) -> str:
    """Return the path of the task's BDDL; a changed definition is written below the work directory first.

    Raises ValueError if the task's file is missing.
    """
    text = task.bddl()
    if text == task.written():
        return str(task.bddl_path)
    path = runtime.active().work_dir / "bddl" / f"{task.suite}-{task.index}.bddl"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)  # atomic: workers share the directory
    return str(path)


def build(task: Task, robot: str = "") -> LiberoProblem:
    """Return the problem of `task` with an arm of robots.py, without renderer, cameras and stock observations.

    Raises ValueError if the task's file is missing or the arm is unknown, RuntimeError if no initial layout can be
    sampled.
    """
    path = bddl_path(task)
    problem, scene, posture = TASK_MAPPING[bddl_utils.get_problem_info(path)["problem_name"]], {}, 0
    if task.disturbance is not None:
        problem, scene = plus_scenes.seen_from_elsewhere(problem, task.disturbance), plus_scenes.options(task)
        posture = task.disturbance.posture
    settings = {
        "robots": [robots.panda(robot, posture)],
        "controller_configs": load_controller_config(default_controller="OSC_POSE"),
        "gripper_types": "default",
        "initialization_noise": None,
        "use_camera_obs": False,
        "has_renderer": False,
        "has_offscreen_renderer": False,
        "control_freq": 20,
        "horizon": 1000,
        "ignore_done": True,
        "hard_reset": False,
        **scene,
    }
    with global_rng(np.random.RandomState(0).get_state()):
        for _ in range(_BUILD_TRIES):
            try:
                domain, pristine = _construct(problem, path, settings)
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
    assert is_supported(domain), "LIBERO's OSC_POSE settings have changed"
    mujoco.MjModel.from_xml_string("<mujoco/>")  # frees the parsed scene that MuJoCo keeps for mj_saveLastXML
    return LiberoProblem(domain, pristine, ArmControl(domain))


def _construct(problem: type, path: str, settings: dict):
    """Return (problem object, snapshot of its model before the constructor's own reset changed it)."""
    domain, pristine = problem.__new__(problem), []

    def first_reset():
        pristine.append(ModelSnapshot(domain.sim.model._model))
        del domain._reset_internal
        domain._reset_internal()

    domain._reset_internal = first_reset
    domain.__init__(path, **settings)
    return domain, pristine[0]
