"""The smoke test of LIBERO's environment: a part of its image's build; see images/common/selftest.py."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from images.common.selftest import check_egl, check_frame, check_imports, expect, in_fresh_process, run

SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90", "libero_10_pro")
MODULES = (
    "scipy", "numba", "cv2", "av", "simplejpeg", "PIL", "gymnasium", "bddl", "mujoco", "OpenGL", "tyro", "httpx",
    "pyarrow.parquet", "h5py", "websockets",
)  # fmt: skip


def check_libraries() -> str:
    """Check the versions that decide what LIBERO's images look like, and the imports."""
    import mujoco
    import numpy

    expect(mujoco.__version__ == "3.2.3", f"mujoco is {mujoco.__version__}; 3.2.3 draws LIBERO's published scenes")
    expect(numpy.__version__ < "2", f"numpy is {numpy.__version__}; robosuite 1.4.0 needs 1.26")
    return f"mujoco {mujoco.__version__}, numpy {numpy.__version__}, {check_imports(MODULES)}"


def check_robosuite() -> str:
    """Check that robosuite builds a Panda and steps it. In the image's build this fills numba's cache.

    Afterwards it takes what was compiled there, as a simulator does: a copy, for numba wants to write.
    """
    with tempfile.TemporaryDirectory() as directory:
        return in_fresh_process(step_a_panda, Path(directory, "numba"))


def step_a_panda(cache: Path) -> str:
    compiled = os.environ.get("VLALAB_NUMBA_SEED")
    if compiled and "NUMBA_CACHE_DIR" not in os.environ:
        shutil.copytree(compiled, cache, copy_function=shutil.copyfile)
        os.environ["NUMBA_CACHE_DIR"] = str(cache)
    import robosuite
    from robosuite.controllers import load_controller_config

    env = robosuite.make(
        "Lift", robots="Panda", controller_configs=load_controller_config(default_controller="OSC_POSE"),
        has_renderer=False, has_offscreen_renderer=False, use_camera_obs=False,
    )  # fmt: skip
    env.reset()
    env.step([0.1] * 7)  # a rotation too: without one, not all that a simulator needs would be compiled
    env.close()
    return f"robosuite {robosuite.__version__} steps a Panda"


def check_suites() -> str:
    """Check that LIBERO's wheel is whole: the task descriptions, and one init file per suite."""
    from services.libero.simulator.suites import init_states, load_suite

    for name in SUITES:
        tasks = load_suite(name).tasks
        missing = [task.bddl_path.name for task in tasks if not task.bddl_path.is_file()]
        expect(not missing, f"{name} lacks {len(missing)} BDDL files, the first is {missing[:1]}; reinstall hf-libero")
        states = init_states(tasks[0])
        expect(len(states) == 50, f"{tasks[0].init_states_path} holds {len(states)} states, expected 50")
    return f"{len(SUITES)} suites, one init file of each"


def check_scene() -> str:
    """Check that a scene of the asset kit looks as MuJoCo 3.2.3 draws it."""
    with tempfile.TemporaryDirectory() as directory:
        return in_fresh_process(draw_a_scene, Path(directory))


def draw_a_scene(directory: Path) -> str:
    import numpy as np

    from services.libero.assets.sources import ensure_kit
    from services.libero.simulator import runtime
    from services.libero.simulator.env import LiberoEnv
    from services.libero.simulator.suites import init_states, load_suite

    kit = ensure_kit(directory / "volume")
    choice = runtime.configure(kit.path, directory / "work", render="auto").gl
    env, task = LiberoEnv(kit.path), load_suite("libero_goal").tasks[0]
    env.load_task(task)
    env.reset(0, init_states(task)[0])
    env.step(np.zeros(7, np.float32))
    frame = check_frame(env.render, 256, mean=152.6, spread=54.2)
    return f"{frame}, {choice.backend} on the {'CPU' if choice.software else 'GPU'}"


if __name__ == "__main__":
    dependencies = {"libraries": check_libraries, "egl": check_egl, "robosuite": check_robosuite}
    sys.exit(run("libero", dependencies, {"suites": check_suites, "frame": check_scene}))
