"""Gymnasium environments as benchmarks: LeRobot's own states and images to the bit, and runs over real HTTP."""

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from services.aloha.benchmark import BENCHMARK as ALOHA
from services.pusht.benchmark import BENCHMARK as PUSHT
from tests.lerobot import toy_gymnasium as toy
from tests.libero.harness import ENVIRONMENT, ROOT, TIMEOUT_S, results, wait_for
from vla_common import gl
from vla_evaluation import agreement, gymnasium
from vla_evaluation.benchmark import EnvironmentRefused
from vla_evaluation.pictures import images
from vla_evaluation.random_policy import RandomPolicy
from vla_evaluation.recording import Demonstrations
from vlalab.description import manifests

gl.bind(gl.choose("cpu"))  # before anything imports MuJoCo

HERE = str(Path(__file__).parent)
VARIABLES = {**ENVIRONMENT, "PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}{os.pathsep}{HERE}", "OMP_NUM_THREADS": "1"}
TABLES = {"pusht": PUSHT, "aloha": ALOHA}


def started(table, episode: int = 0, suite: str = "", size: int = 0):
    """Return an environment of the table's first task in that episode of an evaluation."""
    env = table.make_env(Path(), Path(), table.cameras, size, "cpu")
    begin(env, table, episode, suite)
    return env


def begin(env, table, episode: int, suite: str = "") -> None:
    task = table.tasks(suite or table.suites[0])[0]
    env.load_task(task, next(iter(table.profiles.values())).env_seed)
    env.reset(episode, table.init_states(task)[episode])


# --- against LeRobot --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suite", "task", "episodes", "steps"),
    [
        ("pusht", "PushT-v0", 3, 40),
        ("aloha_insertion", "AlohaInsertion-v0", 1, 2),
        pytest.param("aloha_transfer_cube", "AlohaTransferCube-v0", 1, 2, marks=pytest.mark.nightly),
    ],
)
def test_states_and_images_are_those_of_lerobots_environment(suite, task, episodes, steps):
    from lerobot.envs.factory import make_env, make_env_config

    name = suite.partition("_")[0]
    table, config = TABLES[name], make_env_config(name, task=task)
    theirs = make_env(config, n_envs=episodes)[name][0]
    seen, _ = theirs.reset(seed=[1000 + k for k in range(episodes)])
    ours = [started(table, k, suite) for k in range(episodes)]
    rng = np.random.default_rng(0)
    low, high = (
        np.repeat([getattr(p, end) for p in table.action], [p.size for p in table.action]) for end in ("low", "high")
    )
    protocol = table.profiles["lerobot"].protocol()
    for step in range(steps + 1):
        pixels = seen["pixels"] if name == "pusht" else seen["pixels"]["top"]
        for k, env in enumerate(ours):
            assert np.array_equal(images.prepare(env.render("top"), protocol), pixels[k]), (k, step)
            assert np.array_equal(env.state(), seen["agent_pos"][k].astype(np.float32)), (k, step)
        actions = rng.uniform(low, high, (episodes, len(low))).astype(np.float32)
        seen, _, terminated, _, info = theirs.step(actions)
        solved = [env.step(action) for env, action in zip(ours, actions, strict=True)]
        assert solved == list(terminated) == [gymnasium.read_success(info, "is_success", k) for k in range(episodes)]
    theirs.close()


def test_horizon_rate_seed_and_keys_are_lerobots():
    from lerobot.configs.default import EvalConfig
    from lerobot.configs.eval import EvalPipelineConfig
    from lerobot.envs.factory import make_env_config

    for name, table in TABLES.items():
        config = make_env_config(name)
        assert (table.horizon, table.control_hz) == (config.episode_length, config.fps)
        assert table.seed == EvalPipelineConfig.__dataclass_fields__["seed"].default
        assert table.per_task == EvalConfig.__dataclass_fields__["n_episodes"].default
        assert table.success == "is_success"


def test_pusht_is_solved_on_the_goal():
    env = started(PUSHT)
    block = env.env.unwrapped.block
    block.angle, block.position = np.pi / 4, (256, 256)
    assert env.step(np.array([60, 60], np.float32)) and env.ended


def test_the_service_and_the_manifests_know_the_same_robots():
    from services.lerobot.robots import ROBOTS

    for name, table in TABLES.items():
        robot, manifest = ROBOTS[name], manifests.benchmarks()[name]
        assert (robot.action, robot.state) == (table.action, table.state)
        assert set(robot.cameras.values()) <= set(table.cameras)
        assert (manifest.suites, manifest.cameras) == (table.suites, table.cameras)
        assert manifest.profiles == tuple(table.profiles) and manifest.episodes == table.available
        info = RandomPolicy("random", robot.action, cameras=table.cameras).info()
        agreement.check_policy(info, table, table.suites[0], table.profiles["lerobot"])
        with pytest.raises(ValueError, match="was made|expects|needs"):
            agreement.check_policy(
                info, TABLES["pusht" if name == "aloha" else "aloha"], "x", table.profiles["lerobot"]
            )


# --- the adapter ------------------------------------------------------------------------------------------------


def trace(env) -> tuple:
    """Return start, image and outcome of an episode in which a toy goes to the right."""
    states, frames, solved = [env.sim_state()], [env.render("front")], False
    while not (solved or env.ended):
        solved = env.step(np.array([0.2], np.float32))
        states.append(env.sim_state())
        frames.append(env.render("front"))
    return solved, np.array(states), np.array(frames)


@pytest.mark.parametrize("kwargs", [{}, {"num_envs": 3}, {"num_envs": 2, "vectorization_mode": "async"}])
def test_an_episode_depends_on_its_number_only(kwargs):
    """Of vector environments, whose slots end at different steps and start again by themselves, too."""
    table = toy.table(kwargs=kwargs)
    alone = {k: trace(started(toy.table(), k)) for k in range(4)}
    env = started(table)
    for episode in (3, 0, 2, 2, 1):
        begin(env, table, episode)
        solved, states, frames = trace(env)
        assert solved is True and np.array_equal(states, alone[episode][1])
        assert np.array_equal(frames, alone[episode][2])
    assert len({states[0][-1] for _, states, _ in alone.values()}) == 4
    env.close()


def test_a_vector_environment_that_resets_in_the_same_step_shows_the_episodes_end():
    from gymnasium.vector import AutoresetMode

    settings = {"num_envs": 3, "vector_kwargs": {"autoreset_mode": AutoresetMode.SAME_STEP}}
    env, expected = started(toy.table(kwargs=settings), 1), trace(started(toy.table(), 1))
    for ours, theirs in zip(trace(env), expected, strict=True):
        assert np.array_equal(ours, theirs)


MASK = np.array([True, False])


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"is_success": True}, True),
        ({"is_success": np.bool_(False)}, False),
        ({"is_success": np.array([False, True])}, False),
        ({"is_success": np.array([True, True]), "_is_success": ~MASK}, None),
        ({"final_info": {"is_success": np.array([True, False]), "_is_success": MASK}, "_final_info": MASK}, True),
        (
            {"final_info": {"is_success": np.array([True, True])}, "_final_info": ~MASK, "is_success": MASK & ~MASK},
            False,
        ),
        ({"final_info": np.array([{"is_success": True}, None], object), "_final_info": MASK}, True),
        ({"final_info": np.array([None, {"is_success": True}], object)}, None),
        ({"final_info": [None, None], "is_success": np.array([True, False])}, True),
        ({"success": True}, None),
        ({}, None),
    ],
)
def test_success_is_read_from_every_form_of_info(info, expected):
    assert gymnasium.read_success(info, "is_success") is expected


def test_an_environment_without_a_success_key_is_refused():
    env = started(toy.table(kwargs={"success": "won"}))
    with pytest.raises(EnvironmentRefused, match=r"no 'is_success' in info.*keys are won\. Name"):
        trace(env)
    assert trace(started(toy.table(kwargs={"success": "won"}, success="won")))[0] is True


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": {"front": "pixels"}}, "no observation 'pixels' for camera front; it has at, image"),
        ({"images": {"front": "at"}}, r"camera front is float64 \[1\]; expected uint8"),
        ({"state_key": "agent_pos"}, "no observation 'agent_pos' for the state"),
        ({"state": toy.table().state * 2}, r"has 1 numbers of state; its table has 2: position \[1\], position \[1\]"),
        ({"action": toy.table().action * 3}, "has 1 numbers of action; its table has 3"),
        ({"kwargs": {"sucess": "won"}}, "cannot be made: TypeError"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(changes, message):
    with pytest.raises(EnvironmentRefused, match=message):
        started(toy.table(**changes))


def test_an_environment_that_is_not_installed_is_named():
    task = gymnasium.GymnasiumTask("x", "x", "no_such_package:X-v0")
    with pytest.raises(ValueError, match="no_such_package is not installed"):
        toy.table(tasks_of={"x": [task]}).assets(None, ROOT)


def test_an_episode_ends_where_the_environment_ends_it():
    env = started(toy.table())
    while not env.ended:
        assert env.step(np.array([-0.2], np.float32)) is False


@pytest.mark.parametrize(("table", "suite"), [(toy.table(), ""), (PUSHT, ""), (ALOHA, "aloha_transfer_cube")])
def test_an_earlier_episode_is_rendered_by_its_actions(table, suite):
    """In the process that ran it and in another, the steps of a video and those of a recording."""
    env, camera = started(table, 2, suite), table.video_camera
    width, steps = sum(part.size for part in table.action), 7
    compared = {0, env.stride, steps}
    states, views, frames = [], [], {}
    for step in range(steps + 1):
        states.append(env.sim_state())
        views.append(env.view())
        if step in compared:
            frames[step] = env.render(camera)
        if step < steps:
            env.step(np.full(width, 0.01 * step, np.float32))
    other = started(table, 2, suite)
    for step in (*range(0, steps, env.stride), steps, 1, 0):
        for each in (env, other):
            each.restore(states[step])
            assert step not in frames or np.array_equal(each.render(camera), frames[step]), step
    other.reset(2, np.array([2]))
    with pytest.raises(ValueError, match="--drop-noops"):
        other.show(views[5])
    for step, view in enumerate(views):
        other.show(view)
        assert step not in frames or np.array_equal(other.render(camera), frames[step])


def test_the_run_goes_on_after_an_earlier_step_was_rendered():
    env, same = started(toy.table(), 1), started(toy.table(), 1)
    start, move = env.sim_state(), np.array([0.05], np.float32)
    for _ in range(4):
        env.step(move), same.step(move)
    env.restore(start)
    env.step(move), same.step(move)
    assert np.array_equal(env.sim_state(), same.sim_state()) and env.state() == same.state()


def test_an_environment_that_is_not_deterministic_is_not_rendered_wrongly():
    env = started(toy.table(kwargs={"noise": True}, control_hz=10))
    env.step(np.array([-0.9], np.float32))
    other = started(toy.table(kwargs={"noise": True}, control_hz=10))
    with pytest.raises(ValueError, match="not deterministic"):
        other.restore(env.sim_state())


# --- runs -------------------------------------------------------------------------------------------------------


@contextmanager
def serving(directory: Path, *arguments: str):
    """The address of random actions for PushT, from a process of its own."""
    log = directory / "policy.txt"
    command = [sys.executable, "-m", "vla_evaluation.random_policy", *arguments, "--port", "0"]
    with open(log, "w") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=VARIABLES, stdout=output, stderr=output)
    try:
        yield wait_for(lambda: re.search(r"listening on (http://\S+:\d+)", log.read_text()), "the policy's start")[1]
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("policy"), "services.pusht.benchmark", "--cameras", "top") as url:
        yield url


def job(module: str, *words: str, directory: Path, code: int = 0) -> str:
    """Return what a benchmark's program printed."""
    command = [sys.executable, "-m", module, *words, "--run-dir", str(directory)]
    done = subprocess.run(command, cwd=ROOT, env=VARIABLES, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


FLAGS = ("--trials", "2", "--max-steps", "30")


@pytest.fixture(scope="module")
def calm(address, tmp_path_factory):
    """The directory of a run that nothing happened to."""
    root = tmp_path_factory.mktemp("calm")
    flags = ("--workers", "1", "--video", "all", "--run-id", "calm")
    output = job("services.pusht", "pusht", "--policy-url", address, *FLAGS, *flags, directory=root)
    assert "success rate 0.0 % (0/2)" in output and "under profile lerobot" in output
    return root / "calm"


def test_two_workers_give_the_episodes_of_one(address, calm, tmp_path):
    flags = ("--workers", "2", "--video", "none", "--run-id", "two")
    job("services.pusht", "pusht", "--policy-url", address, *FLAGS, *flags, directory=tmp_path)
    assert results(tmp_path / "two") == results(calm)
    assert sorted(results(calm)) == [(0, 0), (0, 1)]


@pytest.mark.nightly
def test_a_killed_run_is_resumed_with_equal_episodes_and_videos(address, calm, tmp_path):
    command = ["services.pusht", "pusht", "--policy-url", address, *FLAGS, "--workers", "1", "--run-id", "cut"]
    arguments = [sys.executable, "-m", *command, "--run-dir", str(tmp_path), "--video", "none"]
    process = subprocess.Popen(arguments, cwd=ROOT, env=VARIABLES, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: list((tmp_path / "cut" / "episodes").glob("*.npz")), "an episode's end")
    process.send_signal(signal.SIGKILL)
    process.wait()
    output = job(*command, "--video", "all", directory=tmp_path)
    assert "(resumed)" in output and "of earlier invocations to render" in output
    assert results(tmp_path / "cut") == results(calm)
    videos = {path.name: path.read_bytes() for path in (tmp_path / "cut" / "videos").iterdir()}
    assert videos == {path.name: path.read_bytes() for path in (calm / "videos").iterdir()} and len(videos) == 4


@pytest.mark.nightly
def test_demonstrations_are_recorded_and_rendered(address, tmp_path):
    flags = ("--episodes", "2", "--keep-failures", "--max-steps", "9", "--workers", "1", "--name", "pushes")
    output = job("services.pusht", "record", "pusht", "--policy-url", address, *flags, directory=tmp_path)
    assert "pushes: 2 demonstrations from 2 attempts" in output
    first, second = Demonstrations(tmp_path / "pushes", render="cpu").episodes
    frames = first.frames("top", 96)
    assert frames.shape == (9, 96, 96, 3) and first.actions.shape == first.states.shape == (9, 2)
    env = PUSHT.make_env(Path(), Path(), ("top",), 96, "cpu")
    env.load_task(PUSHT.tasks("pusht")[0], first.seed)
    env.reset(0, env.start(0))
    for frame, state, action in zip(frames, first.states, first.executed, strict=True):
        assert np.array_equal(frame, env.render("top")) and np.array_equal(state, env.state())
        env.step(action)
    assert not np.array_equal(first.states[0], second.states[0])


def test_a_run_without_a_success_key_stops_with_the_reason(tmp_path):
    with serving(tmp_path, "toy_unreported") as url:
        output = job("toy_unreported", "line", "--policy-url", url, "--trials", "1", directory=tmp_path, code=1)
    assert "error: " in output and "reports no 'is_success' in info" in output and "Traceback" not in output
