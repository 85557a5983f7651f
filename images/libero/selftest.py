"""Does this environment do what LIBERO needs? A part of its image's build; see images/common/selftest.py."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from images.common.selftest import check_egl, check_imports, expect, in_fresh_process, run

TASKS = {
    "libero_spatial": 10,
    "libero_object": 10,
    "libero_goal": 10,
    "libero_10": 10,
    "libero_90": 90,
    "libero_10_pro": 55,
}
MEAN, SPREAD, TOLERANCE = 152.6, 54.2, 3.0  # of draw_a_scene on Mesa, 0 to 255; room for other drivers
MODULES = (
    "scipy", "numba", "cv2", "av", "simplejpeg", "PIL", "gymnasium", "bddl", "mujoco", "OpenGL", "tyro", "httpx",
    "pyarrow.parquet", "h5py", "websockets",
)  # fmt: skip


def check_libraries() -> str:
    """Checks the versions that decide what LIBERO's pictures look like, and the imports."""
    import mujoco
    import numpy

    expect(mujoco.__version__ == "3.2.3", f"mujoco is {mujoco.__version__}; 3.2.3 draws LIBERO's published scenes")
    expect(numpy.__version__ < "2", f"numpy is {numpy.__version__}; robosuite 1.4.0 needs 1.26")
    return f"mujoco {mujoco.__version__}, numpy {numpy.__version__}, {check_imports(MODULES)}"


def check_robosuite() -> str:
    """Checks that robosuite builds a Panda and steps it. In the image's build this fills numba's cache.

    Afterwards it takes what was compiled there, as a simulator does: a copy, for numba wants to write.
    """
    with tempfile.TemporaryDirectory() as folder:
        return in_fresh_process(step_a_panda, Path(folder, "numba"))


def step_a_panda(cache: Path) -> str:
    compiled = os.environ.get("VLALAB_NUMBA_SEED")
    if compiled and "NUMBA_CACHE_DIR" not in os.environ:
        shutil.copytree(compiled, cache, copy_function=shutil.copyfile)
        os.environ["NUMBA_CACHE_DIR"] = str(cache)
    import robosuite
    from robosuite.controllers import load_controller_config

    controller = load_controller_config(default_controller="OSC_POSE")
    env = robosuite.make(
        "Lift", robots="Panda", controller_configs=controller, has_renderer=False, has_offscreen_renderer=False,
        use_camera_obs=False,
    )  # fmt: skip
    env.reset()
    env.step([0.1] * 7)  # a rotation too: without one, not all that a simulator needs would be compiled
    env.close()
    return f"robosuite {robosuite.__version__} steps a Panda"


def check_suites() -> str:
    """Checks that LIBERO's wheel is whole: the task descriptions, and one init file per suite."""
    from services.libero.simulator.suites import init_states, load_suite

    for name, count in TASKS.items():
        tasks = load_suite(name).tasks
        expect(len(tasks) == count, f"{name} has {len(tasks)} tasks, expected {count}")
        missing = [task.bddl_path.name for task in tasks if not task.bddl_path.is_file()]
        expect(not missing, f"{name} lacks {len(missing)} BDDL files, the first is {missing[:1]}; reinstall hf-libero")
        states = init_states(tasks[0])
        expect(len(states) == 50, f"{tasks[0].init_states_path} holds {len(states)} states, expected 50")
    return f"{sum(TASKS.values())} tasks in {len(TASKS)} suites, one init file of each"


def check_frame() -> str:
    """Checks that a scene of the asset kit looks as it should, and the same when it is drawn again."""
    with tempfile.TemporaryDirectory() as folder:
        return in_fresh_process(draw_a_scene, Path(folder))


def draw_a_scene(folder: Path) -> str:
    import numpy as np

    from services.libero.assets.sources import ensure_kit
    from services.libero.simulator import runtime
    from services.libero.simulator.env import LiberoEnv
    from services.libero.simulator.suites import init_states, load_suite

    kit = ensure_kit(folder / "volume")
    choice = runtime.configure(kit.path, folder / "work", render="auto").gl
    from OpenGL import GL  # bound to the renderer that was chosen

    env, task = LiberoEnv(kit.path), load_suite("libero_goal").tasks[0]
    env.load_task(task)
    env.reset(0, init_states(task)[0])
    env.step(np.zeros(7, np.float32))
    first, again = env.render(), env.render()
    renderer = GL.glGetString(GL.GL_RENDERER)
    env.step(np.full(7, 0.1, np.float32))
    env.close()
    if (lacking := not_in_seed()) is not None:
        expect(not lacking, f"every start of a simulator compiles {', '.join(lacking)}, which the image should hold")
    mean, spread = float(first.mean()), float(first.std())
    expect(first.shape == (256, 256, 3) and first.dtype == np.uint8, f"a frame is {first.dtype} {first.shape}")
    expect(
        abs(mean - MEAN) < TOLERANCE and abs(spread - SPREAD) < TOLERANCE,
        f"the frame's mean is {mean:.1f}, its spread {spread:.1f}; MuJoCo 3.2.3 draws it with {MEAN} and {SPREAD}",
    )
    expect(bool((first == again).all()), "the same state drawn twice gives two pictures")
    who = (renderer or b"unknown").decode(errors="replace").split(" (")[0]
    where = f"{choice.backend} on the {'CPU' if choice.software else 'GPU'}"
    return f"{who} by {where}: mean {mean:.1f}, spread {spread:.1f}"


def not_in_seed() -> list[str] | None:
    """Returns the functions that numba compiled in this process's cache and not in the image's build.

    None where it uses no copy of what was compiled there. Which processor they were compiled for does not matter.
    """
    seed, used = os.environ.get("VLALAB_NUMBA_SEED"), os.environ.get("NUMBA_CACHE_DIR")
    if not seed or not used or seed == used:
        return None
    held, needed = ({path.name for path in Path(folder).glob("*/*.nbi")} for folder in (seed, used))
    return sorted(name.partition("-")[0] for name in needed - held)


if __name__ == "__main__":
    dependencies = {"libraries": check_libraries, "egl": check_egl, "robosuite": check_robosuite}
    sys.exit(run("libero", dependencies, {"suites": check_suites, "frame": check_frame}))
