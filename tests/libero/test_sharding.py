"""Episode k starts from the sequential reference loop's bits, in any order, alone, and after failed layouts."""

import numpy as np
import pytest

from services.libero.simulator import suites

TASKS = [("libero_goal", 5), ("libero_spatial", 4)]  # the second one starts with a drawer drawn open
EPISODES = 3
ORDERS = {"in order": (0, 1, 2), "shuffled": (2, 0, 1), "alone": (2,), "again": (1, 1)}
ACTION = np.array([0.3, -0.2, -0.6, 0.1, 0.0, 0.4, 1.0])


def start_of(model, data, fixtures, state):
    return {"fixtures": fixtures, "state": state, "warm start": data.qacc_warmstart.copy(), "bodies": data.xpos.copy()}


def reference_starts(stock, init_states, episodes=EPISODES):
    """The sequential loop: seed once, then reset and set the init state per episode. One step is played each."""
    starts = []
    stock.seed(0)
    for episode in range(episodes):
        stock.reset()
        stock.set_init_state(init_states[episode])
        ids = stock.env.obj_body_id
        model = stock.sim.model
        fixtures = {
            n: np.concatenate([model.body_pos[ids[n]], model.body_quat[ids[n]]]) for n in stock.env.fixtures_dict
        }
        start = start_of(model, stock.sim.data, fixtures, stock.get_sim_state())
        stock.step(ACTION.tolist())
        starts.append(start | {"after a step": stock.get_sim_state()})
    return starts


def our_start(env, episode, init_state):
    env.reset(episode, init_state)
    sim = env.domain.sim
    start = start_of(sim.model, sim.data, env.fixture_poses(), env.sim_state())
    env.step(ACTION)
    return start | {"after a step": env.sim_state()}


def assert_same_start(expected, got):
    assert expected["fixtures"].keys() == got["fixtures"].keys()
    for name, pose in expected["fixtures"].items():
        assert np.array_equal(pose, got["fixtures"][name]), f"pose of {name}"
    for part in ("state", "warm start", "bodies", "after a step"):
        assert np.array_equal(expected[part], got[part]), part


def small_stock(task, **options):
    """LIBERO's environment with 8-pixel pictures: nothing here looks at them."""
    from libero.libero.envs import OffScreenRenderEnv

    from services.libero.simulator import problem

    path = problem.bddl_path(task)
    return OffScreenRenderEnv(
        bddl_file_name=path, camera_names=["agentview"], camera_heights=8, camera_widths=8, **options
    )


@pytest.fixture(scope="module", params=TASKS, ids=lambda task: f"{task[0]}-{task[1]}")
def reference(request, libero_runtime):
    task = suites.load_suite(request.param[0]).tasks[request.param[1]]
    init_states = suites.init_states(task)
    stock = small_stock(task)
    yield task, init_states, reference_starts(stock, init_states)
    stock.close()


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS.keys())
def test_any_order_equals_the_sequential_loop(order, reference, libero_env):
    task, init_states, starts = reference
    libero_env.load_task(task, seed=0)
    libero_env._resets.clear()  # as a worker that has just begun
    libero_env.load_task(task, seed=0)
    for episode in order:
        assert_same_start(starts[episode], our_start(libero_env, episode, init_states[episode]))


def test_fixtures_differ_between_episodes(reference):
    """Else the tests above would prove little."""
    _, _, starts = reference
    first, second = starts[0]["fixtures"], starts[1]["fixtures"]
    assert any(not np.array_equal(first[name], second[name]) for name in first)


def test_seeds_differ_and_return(reference, libero_env):
    task, init_states, starts = reference
    libero_env.load_task(task, seed=0)
    for seed, same in ((1, False), (0, True)):
        libero_env.load_task(task, seed=seed)
        poses = our_start(libero_env, 1, init_states[1])["fixtures"]
        equal = all(np.array_equal(poses[name], starts[1]["fixtures"][name]) for name in poses)
        assert equal is same


def test_failed_layouts_are_drawn_again_as_the_wrapper_does(libero_env, libero_runtime, monkeypatch):
    """Every tenth placement fails, by the generator's own word; each failure shifts all later draws."""
    from libero.libero.envs.regions import MultiRegionRandomSampler
    from robosuite.utils.errors import RandomizationError

    task = suites.load_suite("libero_spatial").tasks[4]
    init_states = suites.init_states(task)
    stock = small_stock(task)
    libero_env.load_task(task, seed=0)
    place, failures = MultiRegionRandomSampler.sample, []

    def flaky(self, *args, **kwargs):
        if np.random.uniform() < 0.1:
            failures.append(1)
            raise RandomizationError("no room")
        return place(self, *args, **kwargs)

    monkeypatch.setattr(MultiRegionRandomSampler, "sample", flaky)
    try:
        starts = reference_starts(stock, init_states, episodes=3)
    finally:
        stock.close()
    assert failures
    libero_env._resets.clear()
    libero_env.load_task(task, seed=0)
    for episode in (2, 0, 1):
        assert_same_start(starts[episode], our_start(libero_env, episode, init_states[episode]))
    libero_env._resets.clear()
