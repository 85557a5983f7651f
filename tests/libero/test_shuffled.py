"""The shuffled suites: their starts, stock LIBERO's on the same places, and that memory does not solve them."""

import json
import re
from itertools import combinations
from math import hypot

import numpy as np
import pytest

from services.libero.benchmark import BENCHMARK
from services.libero.oracle.policy import OraclePolicy
from services.libero.simulator import export, shuffled, suites
from tests.libero.test_sharding import small_stock
from vla_contract import Observation
from vla_evaluation.config import RecordConfig
from vla_evaluation.recording.record import wide_suite
from vla_evaluation.recording.trajectory import FIRST_SEED, seed_of

TASKS = [task for name in shuffled.VARIANTS for task in suites.load_suite(name).tasks]
HAND, TARGET = 0.03, 0.06  # m: how far off a hand may close, and an object may be put down, and still succeed
WAIT = np.array([0, 0, 0, 0, 0, 0, -1], np.float32)
named = pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.suite}-{task.index}")


def starts_of(task):
    """The starts as places by name, [50, 3] each."""
    names = list(shuffled.placed(task.bddl()))
    return dict(zip(names, np.array(shuffled.rows(task)).reshape(shuffled.EPISODES, -1, 3).swapaxes(0, 1), strict=True))


@pytest.mark.parametrize("name", shuffled.VARIANTS)
def test_tasks_goals_and_sentences_are_the_bases(name):
    base = suites.load_suite(shuffled.VARIANTS[name].base).tasks
    for task, own in zip(base, suites.load_suite(name).tasks, strict=True):
        assert (own.name, own.instruction, own.bddl_path) == (task.name, task.instruction, task.bddl_path)
    # one sentence for all 50 arrangements of a task: it cannot give an arrangement away
    assert all(len(BENCHMARK.init_states(task)) == shuffled.EPISODES for task in suites.load_suite(name).tasks)


@pytest.mark.parametrize("name", shuffled.VARIANTS)
def test_the_starts_are_those_that_were_published(name):
    assert shuffled.digest(suites.load_suite(name)) == shuffled.DIGESTS[name]


@named
def test_everything_is_in_reach_and_nothing_overlaps(task):
    base_x, reach = shuffled.REACH[shuffled.VARIANTS[task.suite].base]
    places = starts_of(task)
    for name, at in places.items():
        if not name.startswith(shuffled.FIXTURES):
            assert all(hypot(x - base_x, y) <= reach for x, y, _ in at)
            assert np.ptp(at[:, 1]) > 0.15 and np.ptp(at[:, 0]) > 0.2, f"{name} hardly moves"
        else:
            assert np.ptp(at[:, 1]) > 0.35 and np.ptp(at[:, 0]) > 0.05, f"{name} hardly moves"
    for one, other in combinations(places.values(), 2):
        assert np.linalg.norm(one[:, :2] - other[:, :2], axis=1).min() > 0.09


@named
def test_no_demonstration_has_a_start_of_an_evaluation(task):
    evaluated = np.array(shuffled.rows(task))
    seeds = {shuffled.seed_of(other.index, episode) for other in TASKS for episode in range(shuffled.EPISODES)}
    assert max(seeds) < FIRST_SEED and len(seeds) == 500
    for episode in range(10):
        seed = seed_of(0, task.index, episode)
        assert seed >= FIRST_SEED
        recorded = np.array(shuffled.to_row(shuffled.draw(task, seed)))
        assert np.abs(evaluated - recorded).max(axis=1).min() > 0.01  # something is more than 1 cm away
    assert len(np.unique(evaluated, axis=0)) == shuffled.EPISODES


def handle(at):
    """Where a fixture is worked at, 12 cm in front of its origin: the cabinet's drawers, about the stove's knob."""
    return at[:, :2] + 0.12 * np.stack([np.sin(at[:, 2]), -np.cos(at[:, 2])], axis=1)


@pytest.mark.parametrize("name", shuffled.VARIANTS)
def test_the_best_plan_for_one_arrangement_fails_in_most_others(name):
    """A blind policy goes where it always goes: count the starts in which everything its goal names is there."""
    shares = []
    for task in suites.load_suite(name).tasks:
        goal = re.search(r"\(:goal(.*)", task.bddl(), re.DOTALL)[1]
        moved = [handle(at) for thing, at in starts_of(task).items() if thing in goal]
        good = np.ones((shuffled.EPISODES, shuffled.EPISODES), bool)
        for tolerance, at in zip((HAND, TARGET), moved, strict=False):
            good &= np.linalg.norm(at[:, None] - at[None], axis=2) < tolerance
        shares.append(good.sum(axis=1).max() / shuffled.EPISODES)  # of the best of 50 plans
    assert np.mean(shares) <= 0.15, [f"{share:.2f}" for share in shares]


def play(env, task, episode, act):
    """Return whether the episode succeeds, and its actions."""
    env.load_task(task, 7)
    env.reset(episode, np.array(shuffled.rows(task)[episode]))
    for _ in range(10):
        env.step(WAIT)
    actions = []
    for step in range(280):
        if (action := act(env, step)) is None:
            break
        actions.append(action)
        if env.step(action):
            return True, actions
    return False, actions


@pytest.mark.parametrize(("suite", "index"), [("libero_object_shuffled", 5), ("libero_goal_shuffled", 1)])
def test_the_oracle_solves_a_start_and_its_actions_solve_no_other(suite, index, libero_env):
    task, oracle = suites.load_suite(suite).tasks[index], OraclePolicy()

    def ask(env, step):
        seen = Observation({}, None, task.instruction, "x", step, env.privileged(step == 0))
        return np.asarray(oracle.act([seen])[0].actions)[0]

    solved, actions = play(libero_env, task, 0, ask)
    assert solved

    def repeat(env, step):
        return actions[step] if step < len(actions) else None

    assert [play(libero_env, task, episode, repeat)[0] for episode in range(3)] == [True, False, False]


@pytest.mark.parametrize(("suite", "index"), [("libero_object_shuffled", 0), ("libero_goal_shuffled", 5)])
def test_stock_libero_places_everything_alike(suite, index, libero_env, tmp_path, monkeypatch):
    monkeypatch.setattr(shuffled, "EPISODES", 2)
    shuffled.rows.cache_clear()
    suite = suites.Suite(suite, (suites.load_suite(suite).tasks[index],))
    export.export(tmp_path, suite, libero_env)
    (task,) = suite.tasks
    states = np.load(tmp_path / f"{task.name}.npz")["states"]
    written = json.loads((tmp_path / "starts.json").read_text())
    shuffled.rows.cache_clear()
    for episode in range(2):
        row = np.array(shuffled.to_row(written["starts"][task.name][episode]))
        bddl = tmp_path / f"{task.name}_start_{episode:02d}.bddl"
        stock = small_stock(suites.replace(task, bddl_path=bddl, suite="libero_goal", kind=""))
        stock.seed(3)
        stock.reset()
        libero_env.load_task(task, 7)
        libero_env.reset(0, row)
        assert np.allclose(stock.get_sim_state(), libero_env.sim_state(), atol=1e-8)
        assert np.array_equal(states[episode], libero_env.sim_state())
        ids, model = stock.env.obj_body_id, stock.sim.model
        for name, pose in libero_env.fixture_poses().items():
            placed = np.concatenate([model.body_pos[ids[name]], model.body_quat[ids[name]]])
            assert np.allclose(placed, pose, atol=1e-8), name
        if region := shuffled.goal_region(task.bddl(), written["starts"][task.name][episode]):
            models = (stock.sim.model, libero_env.domain.sim.model)
            goals = [model.site_pos[model.site_name2id(f"main_table_{region[0]}")] for model in models]
            assert np.allclose(*goals, atol=1e-8)
        for _ in range(3):
            stock.step(WAIT.tolist())
            libero_env.step(WAIT)
        assert np.allclose(stock.get_sim_state(), libero_env.sim_state(), atol=1e-6)
        stock.close()


def test_a_start_of_another_task_is_refused(libero_env):
    task = suites.load_suite("libero_object_shuffled").tasks[0]
    libero_env.load_task(task)
    with pytest.raises(ValueError, match=r"must have shape \(21,\), got \(20,\)"):
        libero_env.reset(0, np.zeros(20))


def test_only_suites_with_wide_starts_record_them():
    assert RecordConfig(suite="libero_goal").starts == "suite"
    assert (
        wide_suite(BENCHMARK, "libero_goal") == wide_suite(BENCHMARK, "libero_goal_shuffled") == "libero_goal_shuffled"
    )
    with pytest.raises(ValueError, match="not possible for libero_10; choose one of libero_object, libero_goal"):
        wide_suite(BENCHMARK, "libero_10")


def test_light_and_camera_of_a_demonstration_follow_from_its_seed(libero_env):
    task = suites.load_suite("libero_object_shuffled").tasks[0]
    model = None

    def scene(seed, vary):
        nonlocal model
        libero_env.load_task(task, seed, vary=vary)
        libero_env.reset(0, np.array(shuffled.rows(task)[0]))
        model = libero_env._model
        return {name: getattr(model, name).copy() for name in ("cam_pos", "cam_quat", "light_pos", "light_diffuse")}

    own, varied = scene(7, ()), scene(7, ("light", "camera"))
    camera = model.camera("agentview").id
    assert all(np.array_equal(value, scene(7, ("light", "camera"))[name]) for name, value in varied.items())
    assert not any(np.array_equal(value, scene(8, ("light", "camera"))[name]) for name, value in varied.items())
    assert not any(np.array_equal(value, own[name]) for name, value in varied.items())
    others = np.arange(len(own["cam_pos"])) != camera
    assert np.array_equal(own["cam_pos"][others], varied["cam_pos"][others])
    assert np.linalg.norm(own["cam_pos"][camera] - varied["cam_pos"][camera]) > 0.01
    only_light = scene(7, ("light",))
    assert np.array_equal(own["cam_pos"], only_light["cam_pos"]) and (only_light["light_pos"] != own["light_pos"]).any()
    assert all(np.array_equal(value, own[name]) for name, value in scene(7, ()).items())  # nothing is left of it
