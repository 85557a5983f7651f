"""The arm of robosuite 1.4.1 against that package from the index, bit for bit, where its link 7 touches something."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from services.libero.simulator import suites
from tests.libero.test_env import PARTS, our_view, some_actions, task_of

ROOT = Path(__file__).resolve().parents[2]
UV = ROOT / ".venv" / "bin" / "uv"
ROBOT, SHAPE = "robosuite-1.4.1", "robot0_link7_collision"
KINDS = [("libero_goal", 0), ("libero_object", 0)]  # an arm on its stand, and one on the floor


def touching(env) -> list[str]:
    """Return what link 7 of the loaded scene touches."""
    model, contact = env.domain.sim.model, env._data.contact
    pairs = [[model.geom_id2name(one) for one in pair] for pair in zip(contact.geom1, contact.geom2, strict=True)]
    return [other for pair in pairs for other in pair if SHAPE in pair and other != SHAPE]


def a_start_where_it_touches(env, task) -> np.ndarray:
    """Return an init state of the task with the arm where link 7 touches nothing of the arm's own."""
    start, draw = suites.init_states(task)[0].copy(), np.random.RandomState(0)
    low, high = env._model.jnt_range[:7].T
    for _ in range(1000):
        start[1:8] = draw.uniform(low, high)
        env.reset(0, start)
        found = touching(env)
        if found and not any(name.startswith("robot0") for name in found):
            return start
    raise AssertionError("no such pose in 1000")


@pytest.fixture(scope="module")
def robosuite_141(tmp_path_factory) -> Path:
    """A folder with robosuite 1.4.1 alone."""
    if not UV.exists():
        pytest.skip("the lab's own environment, and uv in it, is not made here (./lab)")
    directory = tmp_path_factory.mktemp("robosuite")
    command = [UV, "pip", "install", "-q", "--no-deps", "--target", directory, "robosuite==1.4.1"]
    done = subprocess.run([*command, "--python", sys.executable], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"robosuite 1.4.1 could not be had: {done.stderr.strip()[-300:]}")
    return directory


@pytest.mark.outside
def test_a_rollout_has_the_bits_of_robosuite_141(robosuite_141, libero_env, libero_assets, tmp_path):
    suite, index = KINDS[0]
    task, actions, file = task_of(suite, index), some_actions(seed=5, steps=4), tmp_path / "stock.npz"
    libero_env.load_task(task, robot=ROBOT)
    start = a_start_where_it_touches(libero_env, task)
    np.savez(file, start=start, actions=actions)
    paths = os.pathsep.join([str(robosuite_141), *filter(None, map(str, sys.path))])
    command = [sys.executable, "-m", "tests.libero.stock_141", libero_assets, tmp_path, suite, str(index), file]
    # Without a limit of its own: on a busy machine the stock loop takes over 200 s. faulthandler_timeout ends a hang.
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    stock, ends = np.load(file), {}
    for robot in (ROBOT, ""):
        libero_env.load_task(task, robot=robot)
        libero_env.reset(0, start)
        views = [our_view(libero_env)]
        for action in actions:
            done = libero_env.step(action)
            views.append(our_view(libero_env, done))
        ends[robot] = views[-1][0]
        if robot:
            for number, name in enumerate(PARTS):
                assert np.array_equal(stock[name], np.array([view[number] for view in views])), f"{name} differs"
    assert not np.array_equal(ends[ROBOT], ends[""])  # it matters


@pytest.mark.parametrize(("suite", "index"), KINDS)
def test_the_arm_has_one_shape_more_and_is_the_same_otherwise(suite, index, libero_env):
    task = task_of(suite, index)
    libero_env.load_task(task)
    names, pose = libero_env.domain.sim.model.geom_names, libero_env._model.nq
    libero_env.load_task(task, robot=ROBOT)
    assert set(libero_env.domain.sim.model.geom_names) - set(names) == {SHAPE} and libero_env._model.nq == pose
    libero_env.load_task(task)
    assert libero_env.domain.sim.model.geom_names == names


def test_a_robot_that_is_not_known_is_reported(libero_env):
    with pytest.raises(ValueError, match=r"robot 'robosuite-1\.5' not found; known: robosuite-1\.4\.1"):
        libero_env.load_task(task_of("libero_goal", 1), robot="robosuite-1.5")
