"""`LiberoEnv` against LIBERO's own OffScreenRenderEnv, bit for bit: states, pictures, proprioception, success."""

import numpy as np
import pytest

from services.libero.simulator import suites
from services.libero.simulator.env import quat_xyzw_to_axis_angle

STEPS = 7
PARTS = ("state", "warm start", "picture", "proprioception", "success")
# One task of each problem class of the suites, and each way a scene can start: drawers open, things in and on things.
# One of libero_goal is played where its burner lights.
ROLLOUTS = [
    ("libero_spatial", 4),
    ("libero_object", 0),
    ("libero_10", 3),
    ("libero_10", 0),
    ("libero_10", 5),
]


def task_of(suite, index):
    return suites.load_suite(suite).tasks[index]


def begin(env, task, episode=0, seed=0):
    """Load a task and start an episode at its init state; return that state."""
    init_state = suites.init_states(task)[episode]
    env.load_task(task, seed)
    env.reset(episode, init_state)
    return init_state


def some_actions(seed, steps=STEPS):
    """Float64 [steps, 7]: beyond the limits, without rotation, without anything, gripper both ways and still."""
    rng = np.random.RandomState(seed)
    actions = rng.uniform(-1.4, 1.4, (steps, 7))
    actions[1, 3:6] = 0.0
    actions[2, :] = 0.0
    actions[:, 6] = rng.choice([-1.0, 0.0, 1.0, 0.3], steps)
    return actions


def stock_view(env, observation, done=False):
    state = [observation["robot0_eef_pos"], quat_xyzw_to_axis_angle(observation["robot0_eef_quat"])]
    state = np.concatenate([*state, observation["robot0_gripper_qpos"]]).astype(np.float32)
    return env.get_sim_state(), env.sim.data.qacc_warmstart.copy(), observation["agentview_image"], state, bool(done)


def our_view(env, done=False):
    return env.sim_state(), env._data.qacc_warmstart.copy(), env.render("agentview"), env.state(), done


def assert_same(stock, ours, where):
    for name, expected, got in zip(PARTS, stock, ours, strict=True):
        assert np.array_equal(expected, got), f"{name} differs {where}"


def record_stock(make, task, init_state, actions, cameras=("agentview",)):
    """Return what LIBERO's own loop saw: after the reset, then after each action. Finished before ours draws: the
    stock renderer takes for granted that its GL context is the current one."""
    stock = make(task, cameras)
    try:
        stock.seed(0)
        stock.reset()
        views = [stock_view(stock, stock.set_init_state(init_state))]
        for action in actions:
            observation, _, done, _ = stock.step(action.tolist())
            views.append(stock_view(stock, observation, done))
    finally:
        stock.close()
    return views


def assert_same_rollout(views, env, init_state, actions):
    """Play episode 0 in our environment and compares every step."""
    env.reset(0, init_state)
    assert_same(views[0], our_view(env), "after the reset")
    for number, action in enumerate(actions, start=1):
        done = env.step(action)
        assert_same(views[number], our_view(env, done), f"after step {number}")


@pytest.mark.parametrize(("suite", "index"), ROLLOUTS)
def test_rollout_has_the_stock_loops_bits(suite, index, libero_env, stock_env, monkeypatch):
    """Also where everything that rests comes from a layer, the kit's plain objects too."""
    from fast_libero.rendering import compositor

    monkeypatch.setattr(compositor, "JOINING", 0)
    task = task_of(suite, index)
    init_state, actions = suites.init_states(task)[0], some_actions(seed=index)
    views = record_stock(stock_env, task, init_state, actions)
    libero_env.load_task(task, seed=0)
    assert_same_rollout(views, libero_env, init_state, actions)


def test_a_seed_for_each_episode_after_one_more_reset_has_lerobots_bits(libero_env, stock_env):
    """envs/libero.py of lerobot@7427f318; a task whose drawers are drawn once more for each model that was built. Also
    what the wrist's camera sees then.
    """
    task, seed, episode = task_of("libero_10", 3), 1000, 1
    init_states = suites.init_states(task)
    stock = stock_env(task)
    try:
        stock.reset()
        for number in range(episode + 1):
            stock.seed(seed + number)
            stock.reset()
            seen = stock.set_init_state(init_states[number])
        view = stock_view(stock, seen)
        fixtures = {name: stock.sim.model.body_pos[at].copy() for name, at in stock.env.obj_body_id.items()}
    finally:
        stock.close()
    libero_env.load_task(task, seed, seed_each=True, extra_resets=1)
    libero_env.reset(episode, init_states[episode])
    assert_same(view, our_view(libero_env), "after the reset")
    assert np.array_equal(seen["robot0_eye_in_hand_image"], libero_env.render("robot0_eye_in_hand"))
    poses = libero_env.fixture_poses()
    assert poses and all(np.array_equal(pose[:3], fixtures[name]) for name, pose in poses.items())
    libero_env.load_task(task, seed, seed_each=True)
    libero_env.reset(episode, init_states[episode])
    other = libero_env.fixture_poses()
    assert any(not np.array_equal(pose, other[name]) for name, pose in poses.items())  # it matters


def test_burner_lights_at_the_same_step(libero_env, stock_env, monkeypatch):
    """The knob turns past its threshold in mid-episode; pictures show it one step late, as the stock ones do."""
    from fast_libero.rendering import compositor

    monkeypatch.setattr(compositor, "JOINING", 0)
    task = next(t for t in suites.load_suite("libero_goal").tasks if t.name == "turn_on_the_stove")
    libero_env.load_task(task, seed=0)
    model = libero_env.domain.sim.model
    knob = next(name for name in model.joint_names if "flat_stove" in name)
    state = suites.init_states(task)[1].copy()
    state[1 + model.get_joint_qpos_addr(knob)] = 0.45
    state[1 + model.nq + model.get_joint_qvel_addr(knob)] = 3.0
    actions = some_actions(seed=0)
    views = record_stock(stock_env, task, state, actions)
    libero_env.reset(0, state)
    assert not libero_env.success()
    assert_same_rollout(views, libero_env, state, actions)
    assert libero_env.success()


@pytest.mark.parametrize(
    "suite_index", [("libero_goal", 0), ("libero_spatial", 0), ("libero_object", 0), ("libero_10", 0)]
)
def test_leaving_things_out_changes_no_pixel(suite_index, libero_env, monkeypatch):
    """Over random arm poses, also such that the arm stands in the table, and two cameras, one of which moves."""
    from fast_libero.rendering.culling import Culling

    begin(libero_env, task_of(*suite_index))
    rng, culled = np.random.RandomState(1), 0
    find = Culling.invisible
    for number in range(8):
        state = libero_env.sim_state()
        state[1:8] += rng.uniform(-0.4, 0.4, 7) * (number > 0)
        libero_env.restore(state)
        for camera in ("agentview", "robot0_eye_in_hand"):
            image = libero_env.render(camera)
            stage, camera_id = libero_env._renderer._stage, libero_env.domain.sim.model.camera_name2id(camera)
            with monkeypatch.context() as patch:
                patch.setattr(Culling, "invisible", lambda self, data, camera: find(self, data, camera) & False)
                patch.setattr(Culling, "sees_mirror", lambda self, data, camera: True)
                assert np.array_equal(image, stage.render(camera_id))
            culled += find(stage.culling, stage.data, camera_id).sum()
    assert culled > 0


@pytest.mark.parametrize("suite_index", [("libero_object", 0), ("libero_10", 0)])
def test_objects_that_nobody_touches_are_drawn_once(suite_index, libero_env, monkeypatch):
    from fast_libero.rendering import compositor

    monkeypatch.setattr(compositor, "JOINING", 0)
    begin(libero_env, task_of(*suite_index))
    for _ in range(30):
        libero_env.step(np.zeros(7))
    held = []
    for number in range(6):
        libero_env.step([0.5, 0.3, -0.8, 0, 0, 0, -1])
        image = libero_env.render("agentview")
        renderer = libero_env._renderer
        assert np.array_equal(image, renderer._stage.render(libero_env._model.camera("agentview").id)), number
        held.append(renderer._compositor._resting[libero_env._model.camera("agentview").id].at_rest.sum())
    assert held[-1] >= 2  # not all of the kit's boxes have come to rest by then


def test_drawing_leaves_the_rollout_alone(libero_env):
    ends = []
    for draw in (False, True):
        begin(libero_env, task_of("libero_goal", 1))
        for action in some_actions(9, steps=4):
            libero_env.step(action)
            if draw:
                libero_env.render("agentview")
        ends.append(libero_env.sim_state())
    assert np.array_equal(*ends)


def test_an_episode_leaves_no_trace_in_the_next(libero_env):
    task = next(t for t in suites.load_suite("libero_goal").tasks if t.name == "turn_on_the_stove")

    def start():
        begin(libero_env, task)
        image = libero_env.render("agentview")
        libero_env.step(np.full(7, 0.2))
        return image, libero_env.sim_state(), libero_env._model.site_rgba.copy()

    before = start()
    libero_env.domain.sim.data.qpos[:] += 0.7  # burner on, everything astray
    for action in some_actions(3):
        libero_env.step(action)
    for expected, got in zip(before, start(), strict=True):
        assert np.array_equal(expected, got)


def test_restore_poses_a_recorded_state(libero_env):
    begin(libero_env, task_of("libero_goal", 2), episode=1)
    libero_env.step(np.full(7, 0.5))
    state = libero_env.sim_state()
    libero_env.restore(state)
    image = libero_env.render("agentview")
    libero_env.step(np.full(7, -1.0))
    libero_env.restore(state)
    assert np.array_equal(libero_env.sim_state(), state)
    assert np.array_equal(libero_env.render("agentview"), image)


def test_numpys_generator_stays_as_it_was(libero_env):
    np.random.seed(77)
    before = np.random.get_state()[1].copy()
    begin(libero_env, task_of("libero_goal", 4), episode=2, seed=3)
    libero_env.step(np.zeros(7))
    assert np.array_equal(np.random.get_state()[1], before)


@pytest.mark.parametrize(
    "action", [np.zeros(6), np.full(7, np.nan), np.array([0, 0, np.inf, 0, 0, 0, 1.0]), np.zeros((1, 7))]
)
def test_bad_actions_are_refused(action, libero_env):
    begin(libero_env, task_of("libero_goal", 4))
    with pytest.raises(ValueError, match="finite vector of 7"):
        libero_env.step(action)


def test_what_needs_an_episode_reports_it(libero_runtime):
    from services.libero.simulator.env import LiberoEnv

    env = LiberoEnv(libero_runtime.assets)
    with pytest.raises(RuntimeError, match="load_task"):
        env.reset(0, np.zeros(10))
    for act in (lambda: env.step(np.zeros(7)), env.render):
        with pytest.raises(RuntimeError, match="reset"):
            act()
    for other in ({"assets": "/elsewhere"}, {"assets": libero_runtime.assets, "render": "gpu"}):
        with pytest.raises(ValueError, match="is configured for"):
            LiberoEnv(**other)


def test_another_tasks_init_state_is_refused(libero_env):
    libero_env.load_task(task_of("libero_goal", 4))
    with pytest.raises(ValueError, match="must have shape"):
        libero_env.reset(0, suites.init_states(task_of("libero_object", 0))[0])
    with pytest.raises(ValueError, match="got -1"):
        libero_env.reset(-1, suites.init_states(task_of("libero_goal", 4))[0])
