"""The policies that need no weights, as they are served: started by their command, asked over HTTP."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from services.libero.oracle.example import example_state
from services.libero.oracle.policy import OraclePolicy
from services.libero.policies.random_policy import RandomPolicy
from services.libero.policies.replay import ReplayPolicy
from services.libero.simulator.suites import load_suite
from tests.libero.harness import ENVIRONMENT
from vla_contract import InvalidObservation, Observation, PolicyClient, PolicyRefused, SessionLost, UnknownSession
from vla_contract.protocol.parts import GRIPPER_CLOSES, OSC_POSE
from vla_evaluation.random_policy import episode_of

SUITE = "libero_goal"
RECORDED = {(3, 7): 5, (4, 0): 2}  # (task, episode) -> steps


@contextlib.contextmanager
def served(log: Path, *arguments: str) -> Iterator[PolicyClient]:
    """Start `python -m services.libero.policies …` on a free port and yields a client of it."""
    command = [sys.executable, "-m", "services.libero.policies", *arguments, "--port", "0"]
    with open(log, "w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=ENVIRONMENT)
    try:
        with PolicyClient(address(process, log)) as client:
            client.wait_ready(120)
            client.pid = process.pid
            yield client
    finally:
        process.kill()
        process.wait()


def address(process: subprocess.Popen, log: Path) -> str:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r"listening on (http://\S+)", log.read_text()):
            return found[1]
        time.sleep(0.05)
    raise AssertionError(f"the policy service did not start:\n{log.read_text()}")


def ends(*arguments: str) -> subprocess.CompletedProcess:
    """Run `python -m services.libero.policies …`, which fails."""
    command = [sys.executable, "-m", "services.libero.policies", *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def oracle(tmp_path_factory) -> Iterator[PolicyClient]:
    with served(tmp_path_factory.mktemp("oracle") / "log.txt", "oracle") as client:
        yield client


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory) -> Path:
    """A run with two recordings, as the evaluator leaves it."""
    directory = tmp_path_factory.mktemp("runs") / "earlier"
    (directory / "episodes").mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({"suite": SUITE}))
    for (task, episode), steps in RECORDED.items():
        actions = np.random.default_rng([task, episode]).uniform(-1, 1, (steps, 7)).astype(np.float32)
        np.savez_compressed(directory / "episodes" / f"{task:02d}-{episode:02d}.npz", actions=actions)
    return directory


def state_at(step: int) -> dict:
    """Return the made-up scene's state with what goes over the wire at this step."""
    state = example_state()
    if step:
        del state["static"]
    return state


def asked(session: str, step: int, privileged: dict | None = None, instruction: str = "put the cube on the tray"):
    return Observation({}, None, instruction, session, step, privileged)


def recorded(task: int, episode: int, step: int, instruction: str | None = None) -> Observation:
    words = load_suite(SUITE).tasks[task].instruction
    return Observation({}, None, instruction or words, f"a-run.{task}.{episode}.1.abcd", step)


def test_the_oracle_says_what_it_needs(oracle):
    info = oracle.info()
    assert (info.name, info.needs_privileged, info.stateful, info.cameras) == ("oracle", True, True, ())
    assert (info.action, info.horizon, info.suites) == ((*OSC_POSE, GRIPPER_CLOSES), 1, ())


def test_the_oracle_acts_on_what_it_is_sent(oracle):
    """The first moves go towards the cube with the gripper open, whatever other sessions do in between."""
    for step in range(3):
        for session in ("a", "b"):
            chunk = oracle.act(asked(session, step, state_at(step)))
            assert chunk.actions.shape == (1, 7) and np.abs(chunk.actions).max() <= 1.0
            assert chunk.actions[0, 6] == -1
            assert chunk.actions[0, 0] > 0.5  # the cube lies 10 cm ahead of the hand


def test_an_unknown_or_reset_session_must_begin_again(oracle):
    oracle.act(asked("c", 0, state_at(0)))
    oracle.reset("c")
    for session, step in (("c", 1), ("never begun", 1), ("never begun", 40)):
        with pytest.raises(SessionLost):
            oracle.act(asked(session, step, state_at(step)))
    assert oracle.act(asked("c", 0, state_at(0))).actions.shape == (1, 7)


@pytest.mark.parametrize("missing", ("static", "eef_pos", "body_quat_wxyz", "privileged"))
def test_incomplete_privileged_state_is_refused_by_name(oracle, missing):
    state = {name: value for name, value in state_at(0).items() if name != missing}
    with pytest.raises(PolicyRefused, match=missing):
        oracle.act(asked("d", 0, None if missing == "privileged" else state))


def test_one_bad_observation_does_not_spoil_its_batch():
    policy = OraclePolicy()
    good, bad, lost = policy.act([asked("a", 0, state_at(0)), asked("b", 0, {}), asked("c", 5, state_at(5))])
    assert good.actions.shape == (1, 7)
    assert isinstance(bad, InvalidObservation) and isinstance(lost, UnknownSession)


def test_a_goal_without_a_skill_is_not_the_oracles_end(caplog):
    """It says so and rests: the episode fails, the run goes on."""
    state = state_at(0)
    state["static"]["goal"] = [["flip", "cube_1"]]
    chunk = OraclePolicy().act([asked("a", 0, state)])[0]
    assert np.array_equal(chunk.actions, [[0, 0, 0, 0, 0, 0, -1]])
    assert "flip" in caplog.text


def test_random_over_http_is_bounded_and_repeatable(tmp_path):
    arguments = ("random", "--seed", "3", "--scale", "0.25", "--horizon", "4")
    with served(tmp_path / "log.txt", *arguments) as client:
        assert client.info().horizon == 4
        chunk = client.act(asked("run.3.7.0.lease", 12))
    assert chunk.actions.shape == (4, 7)
    assert np.abs(chunk.actions[:, :6]).max() <= 0.25 and set(chunk.actions[:, 6]) <= {-1.0, 1.0}
    again = RandomPolicy(seed=3, scale=0.25, horizon=4).act([asked("run.3.7.1.other", 12)])[0]
    np.testing.assert_array_equal(again.actions, chunk.actions)  # another attempt at the same episode


def test_random_depends_on_seed_instruction_episode_and_step():
    def one(seed=0, session="run.3.7.0.x", step=0, words="do it"):
        return tuple(RandomPolicy(seed=seed).act([asked(session, step, instruction=words)])[0].actions[0])

    others = (one(seed=1), one(session="run.3.8.0.x"), one(step=1), one(words="do that"))
    assert len({one(), *others}) == 5


@pytest.mark.parametrize("scale", (0.0, -1.0, 1.5))
def test_random_refuses_a_scale_out_of_bounds(scale):
    with pytest.raises(ValueError, match=re.escape(str(scale))):
        RandomPolicy(scale=scale)


def test_replay_over_http_answers_what_was_recorded(run_directory, tmp_path):
    with served(tmp_path / "log.txt", "replay", "--run", str(run_directory)) as client:
        assert client.info().suites == (SUITE,)
        for (task, episode), steps in RECORDED.items():
            with np.load(run_directory / "episodes" / f"{task:02d}-{episode:02d}.npz") as recording:
                for step in range(steps):
                    chunk = client.act(recorded(task, episode, step))
                    np.testing.assert_array_equal(chunk.actions, recording["actions"][step : step + 1])
        with pytest.raises(PolicyRefused, match="task 3, episode 8"):
            client.act(recorded(3, 8, 0))


def test_replay_chunks_end_with_the_recording_and_then_hold_still(run_directory):
    policy = ReplayPolicy(run_directory, horizon=4)
    lengths = [len(policy.act([recorded(3, 7, step)])[0].actions) for step in (0, 3, 4)]
    assert lengths == [4, 2, 1]
    after = policy.act([recorded(3, 7, 9)])[0].actions
    assert after.shape == (1, 7) and not after[0, :6].any()


@pytest.mark.parametrize(
    ("observation", "reason"),
    (
        (asked("no episode in here", 0), "is not of the form <run>"),
        (recorded(3, 7, 0, instruction="open the fridge"), "open the fridge"),
    ),
)
def test_replay_refuses_what_it_has_no_recording_for(run_directory, observation, reason):
    refusal = ReplayPolicy(run_directory).act([observation])[0]
    assert isinstance(refusal, InvalidObservation) and reason in str(refusal)


def test_replay_needs_a_run_with_recordings(tmp_path):
    with pytest.raises(ValueError, match="has no recordings.*VLALAB_REPLAY_RUN"):
        ReplayPolicy(tmp_path)
    ended = ends("replay", "--run", "")
    assert ended.returncode == 1 and "VLALAB_REPLAY_RUN" in ended.stderr and "Traceback" not in ended.stderr


def test_a_taken_port_is_reported_in_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = ends("random", "--port", str(taken.getsockname()[1]))
    assert ended.returncode == 1 and "choose another port" in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("session", "episode"),
    (
        ("libero_goal/3/7/0", None),
        ("oracle-libero_goal-20260101.3.7.1.0123456789abcdef", (3, 7)),
        ("a.b/c.3.7.1.9", (3, 7)),
        ("warm-up", None),
        ("libero_goal/3/7", None),
    ),
)
def test_sessions_tell_their_episode(session, episode):
    assert episode_of(session) == episode
