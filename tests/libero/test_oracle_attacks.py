"""The oracle over real HTTP, sent hundreds of damaged states: an action or a refusal, and no memory kept."""

from __future__ import annotations

import os
import signal
import urllib.request
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from services.libero.oracle import policy as oracle
from services.libero.oracle.policy import OraclePolicy
from services.libero.simulator.suites import init_states, load_suite
from tests.libero.harness import Evaluation, PolicyService, wait_for
from tests.libero.mutations import mutated
from tests.libero.test_policies import asked, served, state_at
from vla_contract import InvalidObservation, PolicyRefused, SessionLost, UnknownSession

TASKS = (("libero_goal", 0), ("libero_goal", 8), ("libero_10", 9))  # a drawer, a plate, a microwave oven's door
STEPS = 4


@pytest.fixture(scope="module")
def episodes(libero_env) -> list[list[dict]]:
    """The first states of some episodes that the oracle plays in the real simulator, and of the made-up one."""
    return [[state_at(step) for step in range(STEPS)], *(played(libero_env, *task) for task in TASKS)]


def played(env, suite: str, index: int) -> list[dict]:
    from services.libero.simulator.privileged import observe

    task, policy = load_suite(suite).tasks[index], OraclePolicy()
    env.load_task(task, 0)
    env.reset(0, init_states(task)[0])
    states = []
    for step in range(STEPS):
        states.append(observe(env.domain, static=step == 0))
        env.step(policy.act([asked("played", step, states[-1])])[0].actions[0])
    return states


def attack(client, episodes: list[list[dict]], requests: int, seed: int) -> Counter:
    """Send an intact beginning and then a damaged state, again and again; returns how often each answer came."""
    random, answers = np.random.default_rng(seed), Counter()
    for number in range(requests):
        states = episodes[int(random.integers(len(episodes)))]
        last = 0 if random.random() < 0.6 else int(random.integers(1, STEPS))
        states = [*states[:last], mutated(states[last], random)]
        answers[episode(client, f"attack.{seed}.{number}", states)] += 1
    return answers


def episode(client, session: str, states: list[dict]) -> str:
    """Return what came of the last state. A session that goes well is reset at its end, as an evaluator does it."""
    try:
        for step, state in enumerate(states):
            chunk = client.act(asked(session, step, state))
            assert np.isfinite(chunk.actions).all() and np.abs(chunk.actions).max() <= 1.0
    except InvalidObservation:
        return "never sent"
    except (PolicyRefused, SessionLost) as refusal:
        return str(refusal.status)
    client.reset(session)
    return "action"


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20


def test_whatever_is_sent_gets_an_action_or_a_refusal_and_keeps_no_memory(episodes, tmp_path):
    with served(tmp_path / "log.txt", "oracle") as client:
        attack(client, episodes, 150, seed=0)
        before = resident_mb(client.pid)
        answers = attack(client, episodes, 400, seed=1)
        after = resident_mb(client.pid)
        assert episode(client, "still well", episodes[1]) == "action"
    assert set(answers) <= {"action", "422", "409", "never sent"} and answers["422"] > 100 and answers["action"] > 33
    assert after < before + 2.5, f"{before:.1f} MB became {after:.1f} MB, 6 kB a request or more: {answers}"
    assert "Traceback" not in (tmp_path / "log.txt").read_text()


def metrics(url: str) -> str:
    with urllib.request.urlopen(url + "/metrics", timeout=30) as page:
        return page.read().decode()


def test_a_run_that_is_interrupted_leaves_no_session_behind(libero_assets, tmp_path):
    with PolicyService(tmp_path / "log.txt", "--oracle") as service, service.holding(0):
        arguments = ("--policy-url", service.url, "--assets", str(libero_assets), "--video", "none",
                     "--tasks", "8", "--workers", "1", "--lease-s", "6")  # fmt: skip
        with Evaluation(tmp_path / "runs", "stopped", *arguments) as run:
            run.wait_mid_episode(done=0)
            os.kill(next(iter(run.workers().values())), signal.SIGKILL)  # it cannot say that its session has ended
            service.release()
            run.process.send_signal(signal.SIGINT)
            run.process.wait(60)
        wait_for(lambda: "vla_sessions 0.0" in metrics(service.url), "the session's end", 30)


def test_sessions_that_nobody_ends_are_bounded(monkeypatch):
    monkeypatch.setattr(oracle, "MAX_EPISODES", 24)
    policy = OraclePolicy()
    for number in range(40):
        policy.act([asked("the one that moves on", number, state_at(number)), asked(f"left.{number}", 0, state_at(0))])
    assert len(policy._episodes) == 24 and "the one that moves on" in policy._episodes
    assert isinstance(policy.act([asked("left.0", 1, state_at(1))])[0], UnknownSession)


def test_a_script_that_fails_ends_its_episode_with_words():
    def broken(scene):
        yield np.zeros(7, np.float32)
        raise ZeroDivisionError("no way there")

    policy = OraclePolicy(broken)
    first, refusal, lost = (policy.act([asked("a", step, state_at(step))])[0] for step in range(3))
    assert first.actions.shape == (1, 7) and isinstance(lost, UnknownSession) and not policy._episodes
    assert isinstance(refusal, InvalidObservation) and "ZeroDivisionError: no way there" in str(refusal)


@pytest.mark.parametrize("far", (1e6, -1e9))
def test_what_has_fallen_out_of_the_world_is_not_a_reason_to_refuse(far):
    state = state_at(0)
    state["body_pos"][2] = far
    assert OraclePolicy().act([asked("a", 0, state)])[0].actions.shape == (1, 7)
