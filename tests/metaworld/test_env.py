"""The environment against the unmodified package: the same states and the same pictures, to the bit."""

from dataclasses import replace

import numpy as np
import pytest

from services.metaworld.benchmark import BENCHMARK, CAMERAS
from services.metaworld.profiles import PROFILES
from services.metaworld.tasks import SUITES
from vla_evaluation.pictures import images

ALL = SUITES["metaworld_mt50"]
STEPS, IMAGES_AT = 12, (0, 1, 12)


def actions(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (count, 4)).astype(np.float32)


def integrated(of) -> np.ndarray:
    """All that MuJoCo goes on from, of metaworld's environment."""
    import mujoco

    which = mujoco.mjtState.mjSTATE_INTEGRATION
    found = np.empty(mujoco.mj_stateSize(of.model, which))
    mujoco.mj_getState(of.model, of.data, found, which)
    return found


@pytest.mark.parametrize("task", ALL, ids=lambda task: task.name)
def test_states_are_the_packages_own_whatever_ran_before(env, stock, task):
    vectors = BENCHMARK.init_states(task)
    env.load_task(task, 0)
    env.reset(1, vectors[1])  # another episode, before
    for action in actions(4, seed=2):
        env.step(action)
    env.reset(0, vectors[0])
    theirs, seen = stock(task.name, vectors[0])
    for step, action in enumerate((*actions(STEPS), None)):
        assert np.array_equal(env.sim_state()[1:], integrated(theirs)), f"step {step}"
        assert np.array_equal(env.state(), seen[:4].astype(np.float32))
        assert np.array_equal(env.privileged(False)["observation"], seen)
        if action is not None:
            seen, _, _, _, info = theirs.step(action)
            assert env.step(action) == bool(info["success"])


# window-close's first picture shows the window where metaworld's reset had it, and not where it is: so does ours.
@pytest.mark.parametrize("name", ["reach-v3", "window-close-v3"])
def test_images_are_gymnasiums_and_are_drawn_the_same_afterwards(env, stock, drawn, name):
    """What the profile sends is LeRobot's picture: gymnasium's, turned by 180°."""
    task = next(task for task in ALL if task.name == name)
    vector = BENCHMARK.init_states(task)[3]
    env.load_task(task, 0)
    env.reset(3, vector)
    theirs, _ = stock(name, vector)
    small = replace(PROFILES["lerobot"].protocol(), camera_size=64, image_size=64)
    kept = []
    for step, action in enumerate((*actions(STEPS), None)):
        if step in IMAGES_AT:
            ours = env.render("corner2")
            assert np.array_equal(images.prepare(ours, small), np.flip(drawn(theirs), (0, 1))), f"step {step}"
            assert np.array_equal(images.upright(ours), images.prepare(ours, small)), "a film shows it so, too"
            kept.append((env.sim_state(), env.view(), ours))
        if action is not None:
            theirs.step(action)
            env.step(action)
    before = env.sim_state()
    for state, view, image in kept:
        for bring, told in ((env.restore, state), (env.show, view)):
            bring(told)
            assert np.array_equal(env.render("corner2"), image)
            assert np.array_equal(env.view(), view)
    assert np.array_equal(env.sim_state(), before), "looking back moves nothing"


def test_the_other_cameras_are_as_the_package_has_them(env, stock, drawn):
    task = SUITES["metaworld_mt10"][-1]  # the one that is loaded
    vector = BENCHMARK.init_states(task)[0]
    env.load_task(task, 0)
    env.reset(0, vector)
    theirs, _ = stock(task.name, vector, camera="corner3")
    assert {theirs.model.camera(number).name for number in range(theirs.model.ncam)} == set(CAMERAS)
    assert np.array_equal(images.upright(env.render("corner3")), drawn(theirs))


def test_starts_are_drawn_by_the_seed_as_lerobots_adapter_draws_them(env, stock):
    task = SUITES["metaworld_mt10"][2]
    vectors = BENCHMARK.init_states(task)
    env.load_task(task, 7)
    drawn = env.start(0)
    env.reset(0, drawn)
    state = env.sim_state()
    theirs, _ = stock(task.name, vectors[0])
    theirs._freeze_rand_vec, theirs.seeded_rand_vec = False, True
    theirs.seed(7)
    theirs.reset(seed=7)
    assert np.array_equal(theirs._last_rand_vec, drawn)
    env.load_task(task, 7)
    assert np.array_equal(env.start(0), drawn)
    env.reset(0, drawn)
    assert np.array_equal(env.sim_state(), state)
    assert not np.array_equal(env.start(1), drawn) and not (vectors == drawn).all(1).any()


def test_an_episode_continues_after_500_steps(env):
    task = SUITES["metaworld_mt10"][0]
    env.load_task(task, 0)
    env.reset(0, BENCHMARK.init_states(task)[0])
    still = np.zeros(4, np.float32)
    for _ in range(501):
        env.step(still)
    assert env.sim_state()[0] == 501


def test_what_does_not_fit_is_refused(make_env):
    env = make_env()
    with pytest.raises(RuntimeError, match="load_task"):
        env.reset(0, np.zeros(6))
    task = SUITES["metaworld_mt10"][0]
    env.load_task(task, 0)
    with pytest.raises(RuntimeError, match="no episode has started"):
        env.step(np.zeros(4))
    with pytest.raises(ValueError, match="finite vector of 6 numbers"):
        env.reset(0, np.zeros(3))
    with pytest.raises(ValueError, match="outside the space of reach-v3"):
        env.reset(0, np.full(6, 9.0))
    env.reset(0, BENCHMARK.init_states(task)[0])
    for bad in (np.zeros(7), np.full(4, np.nan)):
        with pytest.raises(ValueError, match="finite vector of 4 numbers"):
            env.step(bad)
    with pytest.raises(ValueError, match="view of reach-v3"):
        env.show(np.zeros(3))
    env.close()
