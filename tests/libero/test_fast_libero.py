"""fast_libero against stock LIBERO at LIBERO's own interface, bit for bit: states, observations, images, controller."""

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

from services.libero.simulator import suites

SIZE = 64
CONTROLLER = ("ee_pos", "ee_ori_mat", "ee_pos_vel", "joint_pos", "joint_vel", "J_full", "mass_matrix", "torques",
              "goal_pos", "goal_ori")  # fmt: skip
TASKS = [("libero_spatial", 4), ("libero_object", 0), ("libero_goal", 7), ("libero_10", 3)]


@pytest.fixture(scope="module")
def classes(libero_runtime):
    """LIBERO's class of a name, and ours. Stock environments are closed before ours draw: they share a process."""
    from libero.libero import envs

    import fast_libero

    return lambda name="OffScreenRenderEnv": (getattr(envs, name), getattr(fast_libero, name))


def make(made_by, suite, index, **options):
    np.random.seed(5)  # what building an environment draws from
    task = suites.load_suite(suite).tasks[index]
    return made_by(bddl_file_name=str(task.bddl_path), camera_heights=SIZE, camera_widths=SIZE, **options)


def snapshot(env, observation, *more):
    robot = env.robots[0]
    return {
        "keys": list(observation),
        **dict(observation.items()),
        "state": env.get_sim_state(),
        "warm start": env.sim.data.qacc_warmstart.copy(),
        "torque": env.sim.data.ctrl.copy(),
        "success": env.check_success(),
        "gripper": robot.gripper.current_action.copy(),
        **{name: np.array(getattr(robot.controller, name)) for name in CONTROLLER if hasattr(robot.controller, name)},
        "rest": more,
    }  # fmt: skip


def play(env, starts=(), steps=3, change=None):
    """Play an episode from each of LIBERO's resets, then from init states; return what was seen, and the generator."""
    env.seed(3)
    rng, seen = np.random.RandomState(1), []
    for start in (None, *starts):
        seen.append(snapshot(env, env.reset()))
        if start is not None:
            seen.append(snapshot(env, env.set_init_state(start)))
        if change is not None:
            change(env)
        for action in rng.uniform(-1.2, 1.2, (steps, 7)):
            seen.append(snapshot(env, *env.step(action.tolist())))
    seen.append({"generator": np.random.get_state()[1].copy()})
    env.close()
    return seen


def assert_same(expected, got):
    assert len(expected) == len(got)
    for number, (one, other) in enumerate(zip(expected, got, strict=True)):
        assert list(one) == list(other)
        for name, value in one.items():
            assert type(other[name]) is type(value), (number, name)
            same = np.array_equal(value, other[name]) and np.asarray(value).dtype == np.asarray(other[name]).dtype
            assert same, f"{name} differs in observation {number}"


@pytest.mark.parametrize(("suite", "index"), TASKS)
def test_states_observations_and_images_are_stocks(suite, index, classes):
    stock, ours = classes()
    starts = suites.init_states(suites.load_suite(suite).tasks[index])[:2]
    expected = play(make(stock, suite, index), starts)
    assert_same(expected, play(make(ours, suite, index), starts))
    assert_same(expected, play(make(ours, suite, index, lazy_images=True), starts))


def absolute(env):
    env.robots[0].controller.use_delta = False


def slow_sensor(env):
    env.env.modify_observable("robot0_eef_pos", "sampling_rate", 10)


def blue_light(env):
    env.sim.model.light_diffuse[:] = 0.1, 0.1, 0.6
    env.sim.model.geom_rgba[:, 0] *= 0.5


@pytest.mark.parametrize(
    ("change", "options"),
    [
        (absolute, {}),
        (slow_sensor, {}),
        (blue_light, {}),
        (None, {"hard_reset": False}),
        (None, {"controller": "OSC_POSITION"}),
        (None, {"camera_depths": True}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_what_is_not_fast_is_stocks_too(change, options, classes):
    """LeRobot's absolute actions, sensors of other rates, a model that the caller changes, other robosuite options."""
    expected, got = (play(make(each, "libero_object", 2, **options), change=change) for each in classes())
    assert_same(expected, got)


def test_segmentation_is_stocks(classes):
    seen = []
    for each in classes("SegmentationRenderEnv"):
        env = make(each, "libero_object", 1)
        env.seed(0)
        observation = env.reset()
        image = observation["agentview_segmentation_instance"]
        seen.append([*observation.values(), env.get_segmentation_of_interest(image)])
        env.close()
    assert all(np.array_equal(one, other) for one, other in zip(*seen, strict=True))
    assert len(np.unique(seen[0][-1])) > 1


def test_lazy_images_are_those_of_their_step(classes):
    stock, ours = classes()
    expected, got, kept = [], [], None
    for each, into, options in ((stock, expected, {}), (ours, got, {"lazy_images": True})):
        env = make(each, "libero_goal", 7, **options)
        env.seed(0)
        into.append(env.reset())
        into += [env.step([0.5, 0, -0.5, 0, 0, 0.3, 1])[0] for _ in range(3)]
        into.append(env.reset())
        into[:] = [dict(each.items()) for each in into[::-1]]  # read last to first, after all
        kept = env.step([0] * 7)[0]
        copies = [copy.deepcopy(kept), pickle.loads(pickle.dumps(kept)), dict(kept)] if options else []
        unread = env.step([0] * 7)[0]
        env.close()
    assert_same(expected, got)
    assert all(np.array_equal(each["agentview_image"], kept["agentview_image"]) for each in copies)
    with pytest.raises(RuntimeError, match="before its environment was closed"):
        unread["agentview_image"]


def test_an_episode_ends_at_the_horizon(classes):
    _, ours = classes()
    env = make(ours, "libero_object", 0, horizon=1)
    env.reset()
    env.step([0] * 7)
    with pytest.raises(ValueError, match="terminated episode"):
        env.step([0] * 7)
    env.close()


def test_suites_are_libero_s(libero_runtime):
    from libero.libero import benchmark as stock

    from fast_libero import benchmark

    assert list(benchmark.get_benchmark_dict()) == list(stock.get_benchmark_dict())
    for name in suites.SUITES:
        own, theirs = benchmark.get_benchmark(name)(), stock.get_benchmark(name)()
        assert [own.get_task(i) for i in range(own.n_tasks)] == [theirs.get_task(i) for i in range(theirs.n_tasks)]
    states = own.get_task_init_states(3)
    assert np.array_equal(states, suites.init_states(suites.load_suite(name).tasks[3])) and len(states) == 50
    assert Path(benchmark.get_libero_path("bddl_files")).is_dir()
    with pytest.raises(ValueError, match="known: libero_spatial"):
        benchmark.get_benchmark("libero_goall")


def test_vector_environments_of_libero(classes):
    """Two processes see what one does."""
    import fast_libero

    _, ours = classes()
    seen = []
    for kind in (fast_libero.DummyVectorEnv, fast_libero.SubprocVectorEnv):
        envs = kind([lambda: make(ours, "libero_object", 0, use_camera_obs=False) for _ in range(2)])
        envs.seed(0)
        envs.reset()
        observations, *_ = envs.step(np.full((2, 7), 0.3))
        seen.append([each["robot0_eef_pos"] for each in observations])
        envs.close()
    assert np.array_equal(*seen)
