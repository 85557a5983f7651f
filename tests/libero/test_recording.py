"""Demonstrations: where they start, what is kept, that none is lost or doubled, and that they draw as they were."""

import contextlib
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from services.libero.benchmark import BENCHMARK
from services.libero.simulator import suites
from tests.libero.harness import LightRecording, PolicyService, Recording
from tests.libero.test_faults import small_disk  # noqa: F401  a fixture
from tests.libero.test_sharding import small_stock
from vla_contract.protocol.parts import GRIPPER_CLOSES, OSC_POSE
from vla_evaluation import recording
from vla_evaluation.config import RecordConfig
from vla_evaluation.recording import Demonstrations
from vla_evaluation.recording.record import make_plan, share
from vla_evaluation.recording.trajectory import Noise, TrajectoryRecorder, effective_steps, seed_of
from vla_evaluation.store.runstore import RunStore

ARM = (*OSC_POSE, GRIPPER_CLOSES)
STILL_M = 1e-4  # nearer than this, two drawn places are one
STARTS = [("libero_spatial", 4), ("libero_object", 3), ("libero_goal", 5), ("libero_10", 3), ("libero_90", 0)]
SEEDS = [seed_of(0, 0, episode) for episode in range(6)]
KEPT = 3


def task_of(suite, index):
    return suites.load_suite(suite).tasks[index]


# --- starts -------------------------------------------------------------------------------------------------


def starts_of(env, task):
    """Return one drawn start per seed, and where objects stand in states: slices of their positions."""
    starts = []
    for seed in SEEDS:
        env.load_task(task, seed)
        starts.append(env.start(0))
    model = env.domain.sim.model
    joints = [name for obj in env.domain.objects for name in obj.joints]
    places = [1 + model.get_joint_qpos_addr(name)[0] for name in joints]
    return np.array(starts), np.array([range(place, place + 3) for place in places])


@pytest.mark.parametrize(("suite", "index"), STARTS)
def test_no_demonstration_starts_where_an_evaluation_does(suite, index, libero_env):
    """In every init state some object stands elsewhere than in every drawn start, by more than rounding."""
    task = task_of(suite, index)
    starts, places = starts_of(libero_env, task)
    drawn, official = starts[:, places], suites.init_states(task)[:, places]  # [n, objects, 3]
    apart = np.abs(drawn[:, None, :, :2] - official[None, :, :, :2]).max(axis=(2, 3))
    assert apart.min() > STILL_M
    among = np.abs(drawn[:, None, :, :2] - drawn[None, :, :, :2]).max(axis=(2, 3))
    assert among[~np.eye(len(drawn), dtype=bool)].min() > STILL_M


@pytest.mark.parametrize(("suite", "index"), [("libero_goal", 5), ("libero_spatial", 4)])
def test_a_start_is_the_stock_resets_under_its_seed(suite, index, libero_env, libero_runtime):
    task, (seed, other) = task_of(suite, index), SEEDS[:2]
    stock = small_stock(task)
    try:
        stock.seed(seed)
        stock.reset()
        expected = stock.get_sim_state()
        stock.set_init_state(expected)
        stock.step([0.3, -0.2, -0.6, 0.1, 0.0, 0.4, 1.0])
        afterwards = stock.get_sim_state()
    finally:
        stock.close()
    for first in (seed, other):  # whichever was drawn before
        libero_env.load_task(task, first)
        libero_env.start(0)
        libero_env.load_task(task, seed)
        start = libero_env.start(0)
        assert np.array_equal(start, expected)
    libero_env.reset(0, start)
    libero_env.step(np.array([0.3, -0.2, -0.6, 0.1, 0.0, 0.4, 1.0]))
    assert np.array_equal(libero_env.sim_state(), afterwards)


def test_each_episode_has_a_seed_of_its_own():
    seeds = {seed_of(seed, task, episode) for seed in (0, 1) for task in range(10) for episode in range(50)}
    assert len(seeds) == 1000 and min(seeds) >= 2**31 and max(seeds) < 2**32
    assert all(profile.env_seed < min(seeds) for profile in BENCHMARK.profiles.values())


# --- what is kept -------------------------------------------------------------------------------------------


def test_view_renders_the_recorded_image(libero_env):
    """Also the glow of a burner, which the pose alone does not tell."""
    libero_env.load_task(next(t for t in suites.load_suite("libero_goal").tasks if t.name == "turn_on_the_stove"))
    state = suites.init_states(libero_env.task)[1].copy()
    model = libero_env.domain.sim.model
    knob = next(name for name in model.joint_names if "flat_stove" in name)
    state[1 + model.get_joint_qpos_addr(knob)] = 0.45
    state[1 + model.nq + model.get_joint_qvel_addr(knob)] = 3.0
    libero_env.reset(1, state)
    seen = [(libero_env.view(), libero_env.render("agentview"))]
    for _ in range(3):
        libero_env.step(np.array([0.5, 0, -0.5, 0, 0, 0, 1.0]))
        seen.append((libero_env.view(), libero_env.render("agentview")))
    assert len({view[-1] for view, _ in seen}) == 2
    for view, image in seen[::-1]:
        libero_env.show(view)
        assert np.array_equal(libero_env.render("agentview"), image)


def test_noops_are_openvlas():
    """No movement, and the gripper as in the last action that was kept; the first of all needs movement alone."""
    moving = np.array([True, True, False])
    actions = [(0, 0, -1), (0.5, 0, -1), (0, 0, -1), (0, 5e-5, 1), (0, 0, 1), (0, 2e-4, 1), (0, 0, -1)]
    assert list(np.flatnonzero(effective_steps(np.array(actions, np.float32), moving))) == [1, 3, 5, 6]


class Numbered:
    """An environment that tells how many steps it was asked about."""

    def __init__(self):
        self.asked = -1

    def state(self):
        self.asked += 1
        return np.array([self.asked], np.float32)

    def view(self):
        return np.array([self.asked + 0.5])

    sim_state = view


def test_trajectory_drops_entire_steps():
    """Of a step that does nothing neither action nor state nor view is kept."""
    recorder = TrajectoryRecorder(Numbered(), ARM, Noise(ARM, 0.0, seed=0))
    for move in (0.5, 0.0, 0.5):
        recorder(np.array([move, 0, 0, 0, 0, 0, -1], np.float32))
    whole, dropped = recorder.arrays(), recorder.arrays(drop_noops=True)
    assert len(whole["actions"]) == 3 and [len(values) for values in dropped.values()] == [2] * 5
    assert dropped["states"].tolist() == [[0], [2]] and dropped["views"].tolist() == [[0.5], [2.5]]


def test_pushes_last_some_steps_stay_in_range_and_spare_the_gripper():
    noise, action = Noise(ARM, 0.3, seed=5), np.array([0.9, 0, 0, 0, 0, 0, -1], np.float32)
    noisy = np.array([noise(action) for _ in range(20_000)])
    assert noisy.dtype == np.float32 and np.abs(noisy).max() <= 1 and (noisy[:, 6] == -1).all()
    pushed = (noisy != action).any(1)
    assert pushed.mean() == pytest.approx(4 / 28, rel=0.1)  # 24 steps without one, then 2 to 6 with it
    assert noisy[pushed, 1:6].std() == pytest.approx(0.3, rel=0.1)
    begins = np.flatnonzero(np.diff(noisy[:, 1]) != 0)  # a push is one vector
    assert set(np.diff(begins[:-1])) > {2, 3, 4, 5, 6}
    again = Noise(ARM, 0.3, seed=5)
    assert np.array_equal(noisy[:3], [again(action) for _ in range(3)])
    assert Noise(ARM, 0.0, seed=5)(action) is action


# --- the plan -----------------------------------------------------------------------------------------------


def test_demonstrations_are_shared_among_tasks():
    assert share(7, [0, 2, 3]) == {0: 3, 2: 2, 3: 2}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"suite": "libero_goall"}, "did you mean 'libero_goal'"),
        ({"episodes": 0}, "episodes is 0; expected 1"),
        ({"episodes": 9}, "--episodes must be at least 10.*got 9"),
        ({"noise": 1.5}, "noise is 1.5; expected 0 to 1"),
        ({"noise": float("nan")}, "noise is nan; expected 0 to 1"),
        ({"noise": 0.1, "execute": 8}, "remove --execute 8"),
        ({"name": "../x"}, "not a valid name"),
        ({"tasks": "12"}, "tasks 0-9"),
    ],
)
def test_invalid_recording_options(flags, message):
    with pytest.raises(ValueError, match=message):
        make_plan(BENCHMARK, RecordConfig(**{"suite": "libero_goal", **flags}))


def store_of(tmp_path):
    return RunStore.create(tmp_path / "run.sqlite", suite="s", config_hash="c", plan=[], meta={})


def run_all(store, good, wanted, attempts):
    """Play everything that is pending; `good` says which episodes succeed."""
    while lease := store.lease("w", 1, 0.0, 60.0):
        result = {"success": lease.episode in good, "steps": 1}
        assert store.finish(lease, result, 1.0, target=None if result["success"] else (wanted, attempts))
    return [(row.episode, row.success) for row in store.finished()]


def test_failures_are_replaced_and_first_successes_stored(tmp_path):
    with store_of(tmp_path) as store:
        store.plan_successes({0: 3}, attempts=5)
        assert store.plan() == [(0, 0), (0, 1), (0, 2)]
        done = run_all(store, {1, 3, 4, 7, 9}, 3, 5)
        assert [episode for episode, _ in done] == [0, 1, 2, 3, 4]  # three successes, and no more than it takes
        store.plan_successes({0: 5}, attempts=5)
        assert [episode for episode, _ in run_all(store, {1, 3, 4, 7, 9}, 5, 5)] == list(range(10))


def test_attempts_are_limited_and_targets_may_shrink(tmp_path):
    with store_of(tmp_path) as store:
        store.plan_successes({0: 2}, attempts=2)
        assert len(run_all(store, set(), 2, 2)) == 4
        store.plan_successes({0: 2, 1: 4}, attempts=3)
        assert len(store.plan()) == 6 + 4
        store.plan_successes({0: 2, 1: 1}, attempts=2)
        assert [unit for unit in store.plan() if unit[0] == 1] == [(1, 0)] and len(store.plan()) == 5


# --- whole recordings -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    with PolicyService(tmp_path_factory.mktemp("oracle") / "log.txt", "--oracle") as service:
        yield service


@pytest.fixture(scope="module")
def flags(libero_assets, oracle):
    settings = ("--tasks", "0", "--episodes", str(KEPT), "--noise", "0.2", "--max-steps", "110", "--lease-s", "6")
    return ("--assets", str(libero_assets), "--workers", "1", "--policy-url", oracle.url, *settings)


@pytest.fixture(scope="module")
def recorded(flags, tmp_path_factory) -> Path:
    """A recording that nothing disturbed."""
    with Recording(tmp_path_factory.mktemp("recorded") / "all", "calm", *flags) as run:
        output = run.end()
        assert f"calm: {KEPT} demonstrations from" in output
    return run.directory


def content(directory):
    return {(one.task, one.episode, one.seed): one.arrays for one in Demonstrations(directory).episodes}


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for key, arrays in ours.items():
        assert arrays.keys() == theirs[key].keys()
        assert all(np.array_equal(array, theirs[key][name]) for name, array in arrays.items()), key


def test_recording_describes_its_content(recorded):
    there = Demonstrations(recorded)
    assert (there.name, there.suite, there.policy, there.benchmark) == ("calm", "libero_goal", "oracle", "LIBERO")
    assert there.rate_hz == 20 and there.action == BENCHMARK.action and there.state == BENCHMARK.state
    assert there.cameras == BENCHMARK.cameras and there.noise == 0.2
    assert [one.index for one in there.episodes] == [0, 1, 2]
    for one in there.episodes:
        assert one.success and one.instruction == "open the middle drawer of the cabinet"
        assert one.seed == seed_of(0, 0, one.episode) and one.actions.dtype == one.states.dtype == np.float32
        assert one.actions.shape == one.executed.shape == (one.steps, 7) and one.states.shape == (one.steps, 8)
        assert np.abs(one.actions - one.executed)[:, :6].max() > 0.1  # the noise is executed and not learned
        assert np.array_equal(one.actions[:, 6], one.executed[:, 6])


def test_demonstration_equals_the_live_environment(recorded, libero_env):
    """What was executed, executed again from the start by its seed: states, proprioception, both cameras' pixels."""
    one = Demonstrations(recorded, render="cpu").episodes[0]
    drawn = {camera: one.frames(camera, 256) for camera in ("agentview", "robot0_eye_in_hand")}
    libero_env.load_task(task_of("libero_goal", 0), one.seed)
    libero_env.reset(0, libero_env.start(0))
    for _ in range(10):
        libero_env.step(np.array([0, 0, 0, 0, 0, 0, -1.0]))
    for step, action in enumerate(one.executed):
        assert np.array_equal(libero_env.state(), one.states[step])
        assert np.array_equal(libero_env.sim_state(), one.sim_states[step])
        for camera in drawn if step % 10 == 0 else ():
            assert np.array_equal(libero_env.render(camera), drawn[camera][step]), (camera, step)
        solved = libero_env.step(action)
    assert solved and np.array_equal(libero_env.sim_state(), one.arrays["end"])


def length_of(one, drawn):
    return {camera: (len(frames), int(frames.sum())) for camera, frames in drawn.items()}


def test_processes_render_the_same_in_order(recorded):
    episodes = Demonstrations(recorded, render="cpu").episodes
    alone = list(recording.draw(episodes[:2], ("robot0_eye_in_hand",), 32, then=length_of))
    several = recording.draw([episodes[1], episodes[0]], ("robot0_eye_in_hand",), 32, workers=2, then=length_of)
    assert [(one.index, result) for one, result in several] == [(one.index, result) for one, result in alone[::-1]]
    assert alone[0][1]["robot0_eye_in_hand"][0] == episodes[0].steps


@pytest.fixture(scope="module")
def wave(tmp_path_factory):
    with PolicyService(tmp_path_factory.mktemp("wave") / "log.txt") as service:
        yield service


@pytest.fixture(scope="module")
def light(wave):
    """Flags of recordings whose simulator costs next to nothing: for how they end, go on and are refused."""
    settings = ("--tasks", "0", "--episodes", str(KEPT), "--noise", "0.2", "--max-steps", "40", "--lease-s", "6")
    return ("--workers", "1", "--policy-url", wave.url, *settings)


@pytest.fixture(scope="module")
def calm(light, tmp_path_factory) -> Path:
    """Such a recording that nothing disturbed."""
    with LightRecording(tmp_path_factory.mktemp("light") / "all", "calm", *light) as run:
        assert f"calm: {KEPT} demonstrations from" in run.end()
    assert len(content(run.directory)) == KEPT
    return run.directory


def test_killed_recording_continues_to_the_same_result(wave, light, calm, tmp_path):
    """A worker by kill -9, all of it by Ctrl-C and by kill -9, each time the same command; then with nothing to do."""
    with wave.holding(0):
        with LightRecording(tmp_path, "hurt", *light) as run:
            name = run.wait_mid_episode(done=0)
            os.kill(run.workers()[name], signal.SIGKILL)
            wave.hold(1)
            run.wait_mid_episode(done=1)
            run.process.send_signal(signal.SIGINT)
            wave.hold(2)
            assert "run the same command to continue" in run.end(code=130)
        with LightRecording(tmp_path, "hurt", *light) as run:
            run.wait_mid_episode(done=2)
            run.kill()
    with LightRecording(tmp_path, "hurt", *light) as run:
        assert "(resumed)" in run.end()
    assert_same(content(run.directory), content(calm))
    with LightRecording(tmp_path, "hurt", *light) as run:
        assert f"{KEPT} demonstrations from" in run.end()


def test_full_disk_is_reported_and_loses_nothing(wave, light, calm, small_disk):  # noqa: F811
    with wave.holding(1), LightRecording(small_disk, "run", *light) as run:
        run.wait_mid_episode(done=1)
        filler = small_disk / "filler"
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        wave.release()
        output = run.end(code=1)
        assert "free some space" in output and "run the same command to continue" in output
    filler.unlink()
    with LightRecording(small_disk, "run", *light) as run:
        run.end()
    assert_same(content(run.directory), content(calm))


def test_same_name_adds_demonstrations_and_other_settings_are_rejected(light, calm, tmp_path):
    with LightRecording(calm.parent, "calm", *light, "--seed", "1") as run:
        assert "seed: 0 → 1" in run.end(code=2)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").write_text("")
    with LightRecording(tmp_path, "taken", *light) as run:
        assert "is not a recording (it contains thesis.tex); choose another --name" in run.end(code=2)


def test_policy_without_successes_ends_with_a_message(light, tmp_path):
    more = ("--attempts", "1", "--max-steps", "5", "--noise", "0")
    with LightRecording(tmp_path, "wave", *light, *more) as run:
        output = run.end(code=1)
    with LightRecording(tmp_path, "kept", *light, *more, "--keep-failures") as kept:
        assert f"{KEPT} demonstrations from {KEPT} attempts" in kept.end()
    assert f"0 demonstrations from {KEPT} attempts" in output
    assert f"too few attempts succeeded (task 0: 0 of {KEPT}); use --attempts above 1" in output
    with RunStore(run.directory / "run.sqlite", readonly=True) as store:
        assert len(store.finished()) == KEPT
    assert Demonstrations(run.directory).episodes == ()
    assert [(one.success, one.steps) for one in Demonstrations(kept.directory).episodes] == [(False, 5)] * KEPT


def test_other_directories_are_rejected_as_recordings(recorded, tmp_path):
    with pytest.raises(ValueError, match="is not a recording"):
        Demonstrations(tmp_path)
    damaged = Demonstrations(recorded).episodes[0]
    whole = damaged.path.read_bytes()
    damaged.path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="00-.*npz cannot be read.*record it again"):
        _ = damaged.actions
    damaged.path.write_bytes(whole)
    with pytest.raises(ValueError, match="did you mean 'agentview'"):
        Demonstrations(recorded, render="cpu").episodes[0].frames("agentveiw", 32)
