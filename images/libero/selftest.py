"""The smoke test of LIBERO's environment; images/common/selftest.py runs it."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from images.common.selftest import check_egl, check_frame, expect, in_fresh_process

SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90", "libero_10_pro")
MODULES = (
    "scipy", "numba", "cv2", "av", "simplejpeg", "PIL", "gymnasium", "bddl", "mujoco", "OpenGL", "tyro", "httpx",
    "pyarrow.parquet", "h5py", "websockets",
)  # fmt: skip


def check_robosuite() -> str:
    """Check that robosuite builds a Panda and steps it. In the image's build this fills numba's cache.

    Afterwards it takes what was compiled there, as a simulator does: a copy, for numba wants to write.
    """
    with tempfile.TemporaryDirectory() as directory:
        return in_fresh_process(step_a_panda, Path(directory, "numba"))


def step_a_panda(cache: Path) -> str:
    """Step a Panda with what numba compiled, or compile it into the cache."""
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
        return in_fresh_process(render_scene, Path(directory))


def render_scene(directory: Path) -> str:
    """Render a scene of libero_goal."""
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


DEPENDENCIES = {"egl": check_egl, "robosuite": check_robosuite}
SERVICES = {"suites": check_suites, "frame": check_scene}
