"""The smoke test of Meta-World's environment; images/common/selftest.py runs it."""

from __future__ import annotations

from pathlib import Path

from images.common.selftest import check_egl, check_frame, expect, in_fresh_process

TASKS = {"metaworld_mt10": 10, "metaworld_mt50": 50, "metaworld_ml45_train": 45, "metaworld_ml45_test": 5}
MODULES = ("scipy", "av", "simplejpeg", "PIL", "gymnasium", "mujoco", "OpenGL", "tyro", "pyarrow.parquet", "h5py")


def check_suites() -> str:
    """Check that the package is whole: fifty variations of every task."""
    from services.metaworld import variations
    from services.metaworld.tasks import SUITES

    for name, count in TASKS.items():
        expect(len(SUITES[name]) == count, f"{name} has {len(SUITES[name])} tasks, expected {count}")
    odd = [task.name for task in SUITES["metaworld_mt50"] if len(variations.of(task.name)) != variations.COUNT]
    expect(not odd, f"{odd} have other than {variations.COUNT} variations")
    return f"{len(SUITES)} suites, {len(SUITES['metaworld_mt50'])} tasks"


def solve_a_task() -> str:
    """Check that a scene looks as MuJoCo 3.3.0 draws it, and that an expert solves the task."""
    import numpy as np

    from services.metaworld.benchmark import BENCHMARK
    from vla_contract import Observation

    env, task = BENCHMARK.make_env(Path(), Path(), ("corner2",), 128, "auto"), BENCHMARK.tasks("metaworld_mt10")[0]
    from services.metaworld.oracle import OraclePolicy  # it imports MuJoCo, which is bound to a renderer by now

    env.load_task(task, 0)
    env.reset(0, BENCHMARK.init_states(task)[0])
    env.step(np.zeros(4, np.float32))
    frame, oracle = check_frame(lambda: env.render("corner2"), 128, mean=109.2, spread=47.8), OraclePolicy()
    for step in range(500):
        seen = Observation({}, None, task.instruction, "selftest", step, privileged=env.privileged(step == 0))
        if env.step(np.asarray(oracle.act([seen])[0].actions[0])):
            return f"{frame}; {task.name} solved in {step + 1} steps"
    expect(False, f"the expert has not solved {task.name} in 500 steps")
    return ""


DEPENDENCIES = {"egl": check_egl}
SERVICES = {"suites": check_suites, "scene": lambda: in_fresh_process(solve_a_task)}
