"""LIBERO as a benchmark: what `vla_evaluation` knows of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from services.libero.profiles import PROFILES
from services.libero.simulator import pro_objects, suites
from services.libero.simulator.suites import CAMERAS, Task
from vla_contract.protocol.parts import GRIPPER_CLOSES, HAND_STATE, OSC_POSE
from vla_evaluation.benchmark import Assets

ABOUT_ASSETS = {  # see `vla_evaluation.benchmark.Assets`
    "kit": {
        "unlike": "assets: kit, objects and scenes look and weigh differently",
        "notice": "The scenes are built from the project's own simple models.",
        "advice": "assets: the project's kit, to try things with; numbers to publish need LIBERO's official files: "
        "`./lab assets libero` (317 MB, 22 s on a fast network)",
    },
    "folder": {"unlike": "assets come from a folder, whose content was not verified"},
}


class Libero:
    """LIBERO's five suites on a Panda arm, and LIBERO-PRO's and LIBERO-plus's that disturb them; what the members are
    says `vla_evaluation.benchmark.Benchmark`.
    """

    name = "LIBERO"
    module = __name__
    bases = suites.BASES
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
    worker_gb = 2.0  # a living room's of libero_10 with official files; half of it does for most scenes
    uncounted = ("services.libero.assets", "vla_common.driver")

    def tasks(self, suite: str) -> tuple[Task, ...]:
        """Returns a suite's tasks in LIBERO's order."""
        return suites.load_suite(suite).tasks

    def init_states(self, task: Task) -> np.ndarray:
        """Returns the task's official init states."""
        return suites.init_states(task)

    def assets(self, asked: str | None, volume: Path) -> Assets:
        """Returns a folder, the official files, the image's own, or the kit, which is made on first use."""
        from services.libero import assets

        source = assets.resolve(asked, volume)
        return Assets(source.kind, source.path, source.digest, **ABOUT_ASSETS.get(source.kind, {}))

    def lacking(self, tasks: Sequence[Task], assets: Assets) -> str:
        """Returns why tasks cannot be built, in words: they name objects of LIBERO-PRO that these assets lack, or that
        lie beside LIBERO's official files with another content than LIBERO-PRO's; or files of LIBERO-plus's.
        """
        from services.libero.assets import plus as plus_assets
        from services.libero.assets import pro

        if missing := plus_assets.missing(assets.path, tasks):
            return plus_assets.way_out(assets.path, tasks, missing)
        named = {name for task in tasks if task.kind for name in re.findall(r"-\s+(\w+)", task.bddl())}
        wanted = named & pro_objects.LIKE.keys()
        fetch, place = "`./lab assets libero --all` fetches them", f"the asset folder {assets.path}"
        if missing := pro.missing(assets.path, wanted):
            return (
                f"{place} lacks LIBERO-PRO's {', '.join(missing)}: {fetch} with the official files, and --assets kit "
                "has simple ones"
            )
        if assets.kind == "official" and (other := pro.differing(assets.path, wanted)):
            shown = ", ".join(other[:3]) + (", …" if other[3:] else "")
            return f"{place} has other files than LIBERO-PRO's ({shown}): {fetch} again"
        return ""

    def renderer(self, render: str) -> str:
        """Returns the OpenGL driver's own name and version."""
        from vla_common import driver

        return driver.ask(render)

    def worker_variables(self, number: int) -> dict[str, str]:
        """Returns the GPU to draw on: workers take turns with those there are."""
        from vla_common import gl

        return gl.spread(number)

    def make_env(self, assets: Path, work: Path, cameras: tuple[str, ...], camera_size: int, render: str):
        """Returns a `LiberoEnv`, in a process that is configured for it first."""
        from services.libero.simulator import runtime

        runtime.configure(assets, work, render)
        from services.libero.simulator.env import LiberoEnv  # imports mujoco, which must come after configure

        return LiberoEnv(assets, cameras, camera_size, render)


BENCHMARK = Libero()
