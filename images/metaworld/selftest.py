"""Does this environment do what Meta-World needs? A part of its image's build; see images/common/selftest.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from images.common.selftest import check_egl, check_imports, expect, in_fresh_process, run

TASKS = {"metaworld_mt10": 10, "metaworld_mt50": 50, "metaworld_ml45_train": 45, "metaworld_ml45_test": 5}
MEAN, SPREAD, TOLERANCE = 109.2, 47.8, 3.0  # of draw_a_scene on Mesa, 0 to 255; room for other drivers
MODULES = ("scipy", "av", "simplejpeg", "PIL", "gymnasium", "mujoco", "OpenGL", "tyro", "pyarrow.parquet", "h5py")


def check_libraries() -> str:
    """Checks the versions that decide what Meta-World's scenes do, and the imports."""
    import mujoco
    import numpy

    expect(mujoco.__version__ == "3.3.0", f"mujoco is {mujoco.__version__}; metaworld 3.1.1 was made for 3.3.0")
    return f"mujoco {mujoco.__version__}, numpy {numpy.__version__}, {check_imports(MODULES)}"


def check_suites() -> str:
    """Checks that the package is whole: fifty variations of every task, and each task's scene."""
    from services.metaworld import variations
    from services.metaworld.benchmark import assets_folder
    from services.metaworld.tasks import SUITES

    for name, count in TASKS.items():
        expect(len(SUITES[name]) == count, f"{name} has {len(SUITES[name])} tasks, expected {count}")
    odd = [task.name for task in SUITES["metaworld_mt50"] if len(variations.of(task.name)) != variations.COUNT]
    expect(not odd, f"{odd} have other than {variations.COUNT} variations")
    scenes = len(list((assets_folder() / "sawyer_xyz").glob("*.xml")))
    expect(scenes > 30, f"metaworld's package holds {scenes} scenes; reinstall it")
    return f"{len(SUITES)} suites, {len(SUITES['metaworld_mt50'])} tasks, {scenes} scenes"


def check_expert() -> str:
    """Checks that an expert solves a task."""
    return in_fresh_process(solve_a_task)


def solve_a_task() -> str:
    import numpy as np

    from services.metaworld.benchmark import BENCHMARK
    from services.metaworld.oracle import OraclePolicy
    from vla_contract import Observation

    env, task = BENCHMARK.make_env(Path(), Path(), (), 64, "none"), BENCHMARK.tasks("metaworld_mt10")[0]
    env.load_task(task, 0)
    env.reset(0, BENCHMARK.init_states(task)[0])
    oracle = OraclePolicy()
    for step in range(500):
        seen = Observation({}, None, task.instruction, "selftest", step, privileged=env.privileged(step == 0))
        if env.step(np.asarray(oracle.act([seen])[0].actions[0])):
            return f"{task.name} solved in {step + 1} steps"
    expect(False, f"the expert has not solved {task.name} in 500 steps")
    return ""


def check_frame() -> str:
    """Checks that a scene looks as it should, and the same when it is drawn again."""
    return in_fresh_process(draw_a_scene)


def draw_a_scene() -> str:
    import numpy as np

    from services.metaworld.benchmark import BENCHMARK

    env, task = BENCHMARK.make_env(Path(), Path(), ("corner2",), 128, "auto"), BENCHMARK.tasks("metaworld_mt10")[0]
    from OpenGL import GL  # bound to the renderer that was chosen

    env.load_task(task, 0)
    env.reset(0, BENCHMARK.init_states(task)[0])
    env.step(np.zeros(4, np.float32))
    first, again = env.render("corner2"), env.render("corner2")
    renderer = GL.glGetString(GL.GL_RENDERER)
    env.close()
    mean, spread = float(first.mean()), float(first.std())
    expect(first.shape == (128, 128, 3) and first.dtype == np.uint8, f"a frame is {first.dtype} {first.shape}")
    expect(
        abs(mean - MEAN) < TOLERANCE and abs(spread - SPREAD) < TOLERANCE,
        f"the frame's mean is {mean:.1f}, its spread {spread:.1f}; MuJoCo 3.3.0 draws it with {MEAN} and {SPREAD}",
    )
    expect(bool((first == again).all()), "the same state drawn twice gives two pictures")
    who = (renderer or b"unknown").decode(errors="replace").split(" (")[0]
    return f"{who}: mean {mean:.1f}, spread {spread:.1f}"


if __name__ == "__main__":
    dependencies = {"libraries": check_libraries, "egl": check_egl}
    sys.exit(run("metaworld", dependencies, {"suites": check_suites, "expert": check_expert, "frame": check_frame}))
