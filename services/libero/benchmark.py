"""LIBERO as a benchmark of `vla_evaluation`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from services.libero.profiles import PROFILES
from services.libero.simulator import plus, suites
from services.libero.simulator.pro import LIKE
from services.libero.simulator.shuffled import WIDE
from services.libero.simulator.suites import CAMERAS, Task
from vla_contract.protocol.parts import GRIPPER_CLOSES, HAND_STATE, OSC_POSE
from vla_evaluation.benchmark import Assets

ASSET_NOTES = {  # see `vla_evaluation.benchmark.Assets`
    "kit": {
        "unlike": "assets: kit; objects and scenes differ in look and mass",
        "notice": "The scenes are built from the project's own simple models.",
        "advice": "assets: the project's kit, for trying things out; published numbers need LIBERO's official files: "
        "`./lab assets libero` (317 MB, 22 s on a fast network)",
    },
    "folder": {"unlike": "assets come from a directory whose content was not verified"},
}


class Libero:
    """LIBERO's five suites on a Panda arm, and the suites of LIBERO-PRO and LIBERO-plus, which perturb them.

    `vla_evaluation.benchmark.Benchmark` documents the members.
    """

    name = "LIBERO"
    module = __name__
    bases = suites.BASES
    wide = WIDE
    variations = ("light", "camera")
    trials = suites.TRIALS
    suites = suites.EVERY
    action = (*OSC_POSE, GRIPPER_CLOSES)
    state = HAND_STATE
    control_hz = 20
    cameras = CAMERAS
    video_camera = "agentview"
    profiles = PROFILES
    packages = ("hf-libero", "robosuite", "bddl", "mujoco", "numpy", "pillow", "simplejpeg")
    # robosuite 1.5 has other modules and controllers; MuJoCo 2 has other bindings
    requires = MappingProxyType({"robosuite": "1.4", "mujoco": "3"})
    worker_gb = 2.0  # libero_10's living room with official files; most scenes need half
    uncounted = ("services.libero.assets", "vla_common.driver")

    def tasks(self, suite: str) -> tuple[Task, ...]:
        """Return a suite's tasks in LIBERO's order."""
        return suites.load_suite(suite).tasks

    def base_instruction(self, task: Task) -> str:
        """Return the instruction of the task of LIBERO that `task` disturbs; ValueError if its goal is another."""
        if task.kind == "task":
            raise ValueError(f"--instructions base: {task.suite} task {task.index} has another goal than its base")
        stem = task.bddl_path.stem if task.disturbance is None else plus.base_name(task.name)
        return suites.instruction_of(stem)

    def init_states(self, task: Task) -> np.ndarray:
        """Return the task's official init states."""
        return suites.init_states(task)

    def assets(self, requested: str | None, volume: Path) -> Assets:
        """Return the assets: a directory, the official files, the image's, or the kit (created on first use)."""
        from services.libero import assets

        source = assets.resolve(requested, volume)
        return Assets(source.kind, source.path, source.digest, **ASSET_NOTES.get(source.kind, {}))

    def missing_assets(self, tasks: Sequence[Task], assets: Assets) -> str:
        """Return a message if some tasks cannot be built from these assets, else "".

        They may need objects of LIBERO-PRO that are missing or differ from the published ones, or files of LIBERO-plus.
        """
        from services.libero.assets import plus, pro

        if missing := plus.missing(assets.path, tasks):
            count = sum(bool(plus.missing(assets.path, [task])) for task in tasks)
            listing = ", ".join(missing[:3]) + (", …" if missing[3:] else "")
            return (
                f"{count} of {len(tasks)} tasks need {len(missing)} LIBERO-plus files that are not in {assets.path} "
                f"({listing}); unpack the assets.zip of {plus.ASSETS_URL} and use --assets DIR, or evaluate other "
                "tasks: the kinds camera, robot, language and noise need no extra files, and `./lab assets status` "
                "counts the rest"
            )
        named = {name for task in tasks if task.kind for name in re.findall(r"-\s+(\w+)", task.bddl())}
        objects = named & LIKE.keys()
        location = f"asset directory {assets.path}"
        if missing := pro.missing(assets.path, objects):
            return (
                f"LIBERO-PRO's {', '.join(missing)} not found in {location}; run `./lab assets libero --all` to "
                "download them with the official files, or use the simple ones of --assets kit"
            )
        if assets.kind == "official" and (other := pro.differing(assets.path, objects)):
            listing = ", ".join(other[:3]) + (", …" if other[3:] else "")
            return f"{location} has files that differ from LIBERO-PRO's ({listing}); run `./lab assets libero --all`"
        return ""

    def renderer(self, render: str) -> str:
        """Return the name and version of the OpenGL driver."""
        from vla_common import driver

        return driver.ask(render)

    def worker_variables(self, number: int) -> dict[str, str]:
        """Return the variables that select a worker's GPU; workers are spread over the GPUs in turn."""
        from vla_common import gl

        return gl.spread(number)

    def make_env(self, assets: Path, work: Path, cameras: tuple[str, ...], camera_size: int, render: str):
        """Configure this process for LIBERO and return a `LiberoEnv`."""
        from services.libero.simulator import runtime

        runtime.configure(assets, work, render)
        from services.libero.simulator.env import LiberoEnv  # imports mujoco, which must come after configure

        return LiberoEnv(assets, cameras, camera_size, render)


BENCHMARK = Libero()
