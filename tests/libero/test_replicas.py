"""One policy at several addresses: episodes keep to one, are spread over all, and are done again where one dies."""

import json
import time
from dataclasses import replace

import pytest

from tests.libero.harness import LightEvaluation, PolicyService, results
from vla_contract import PolicyClient
from vla_evaluation.config import EvalConfig
from vla_evaluation.store.runstore import RunStore
from vla_evaluation.workers.replicas import AnotherPolicy, Replicas

EPISODES = 6
A, B = "http://a:1", "http://b:1"


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    directory = tmp_path_factory.mktemp("policies")
    with PolicyService(directory / "a.txt") as one, PolicyService(directory / "b.txt") as other:
        yield one, other


@pytest.fixture
def store(tmp_path):
    plan = [(0, episode) for episode in range(4)]
    with RunStore.create(tmp_path / "run.sqlite", suite="suite", config_hash="c" * 16, plan=plan, meta={}) as store:
        yield store, store.begin_invocation(0.0)


def under_way(run, episode):
    """Wait until an episode is at mid-episode; returns which address it asks."""
    sql = (
        "SELECT json_extract(result, '$.policy') FROM episodes "
        f"WHERE status = 'leased' AND episode = {episode} AND steps >= 3"
    )
    return run.wait_for(lambda: run.peek(sql), f"episode {episode} under way")[0][0]


def test_killed_replica_costs_nothing_and_returns(policies, tmp_path):
    flags = (
        "--tasks", "0", "--trials", str(EPISODES), "--max-steps", "12", "--lease-s", "6", "--video", "none",
    )  # fmt: skip
    one, other = policies
    with LightEvaluation(tmp_path / "runs", "one", "--policy-url", one.url, "--workers", "1", *flags) as run:
        run.end()
        undisturbed = results(run.directory)
    one.hold(0)
    other.hold(1)
    both = f"{one.url},{other.url}/"
    with LightEvaluation(tmp_path / "runs", "both", "--policy-url", both, "--workers", "2", *flags) as run:
        assert (under_way(run, 0), under_way(run, 1)) == (one.url, other.url)
        other.kill()
        one.hold(1, 2)  # lets episode 0 end, and whoever asks now holds all others up there
        run.wait_for(lambda: run.peek("SELECT 1 FROM episodes WHERE status = 'error'"), "what the death ended")
        assert under_way(run, 2) == one.url
        other.release()
        other.start()
        one.kill()
        said = run.end()
    one.release()
    one.start()
    assert "policy wave at 2 addresses, 2 workers" in said
    assert results(run.directory) == undisturbed and len(undisturbed) == EPISODES
    rows = [json.loads(line) for line in (run.directory / "episodes.jsonl").read_text().splitlines()]
    assert [row["policy"] for row in rows] == [one.url] + [other.url] * 5
    faults = set(run.peek("SELECT episode, json_extract(result, '$.policy') FROM episodes WHERE status = 'error'"))
    assert {(1, other.url), (2, one.url)} <= faults <= {(1, other.url), (2, one.url), (1, one.url)}
    shares = json.loads((run.directory / "summary.json").read_text())["policies"]
    assert {row["policy"]: row["episodes"] for row in shares} == {one.url: 1, other.url: 5}
    assert all(row["faults"] for row in shares)
    page = (run.directory / "report.html").read_text()
    assert f"<dt>{other.url}</dt><dd>5 episodes" in page and f"<dt>{one.url}</dt><dd>1 episode," in page


def test_two_policies_are_rejected_with_their_differences(policies, tmp_path):
    with PolicyService(tmp_path / "c.txt", "--name", "surf", "--chunk", "8") as third:
        both = f"{policies[0].url},{third.url}"
        with LightEvaluation(tmp_path / "runs", "r", "--policy-url", both) as run:
            said = run.end(2)
    assert f"{policies[0].url} and {third.url} serve different policies" in said
    assert "name: wave → surf" in said and "horizon: 4 → 8" in said and "Traceback" not in said


def test_worker_avoids_an_unreachable_replica_until_it_returns(policies):
    one, other = policies
    with PolicyClient(one.url) as client:
        expected = json.loads(json.dumps(client.info().to_dict()))
    replicas = Replicas((A, B), (one.url, other.url), expected, None, 5.0, 5.0)
    assert replicas.available() == [A, B] and replicas.pin(B)
    other.kill()
    assert not replicas.pin(B) and replicas.available() == [A]
    assert replicas.pin(A)
    replicas.suspect("it said 500")
    assert replicas.available() == [A], "it answers: one failure says nothing of the next episode"
    other.start()
    replicas.all[B].next_at = time.monotonic()
    assert replicas.available() == [A, B]
    replicas.expected = {**expected, "horizon": 9}
    with pytest.raises(AnotherPolicy, match=f"came back at {other.url}"):
        replicas.pin(B)


def test_episodes_go_to_the_least_busy_replica_without_faults(store):
    store, invocation = store

    def lease(*policies):
        return store.lease("w", invocation, 0.0, 30.0, policies=policies)

    first, second, third = (lease(A, B) for _ in range(3))
    assert [one.policy for one in (first, second, third)] == [A, B, A]
    assert store.fail(second, "no answer", 1.0, retries=2)
    again = lease(A, B)
    assert (again.episode, again.policy) == (second.episode, A), "B has fewer, but it failed there"
    assert lease(B).policy == B and store.release(third)
    assert lease(A, B).policy == B, "one each"
    assert store.finish(first, {"success": True, "steps": 3}, 2.0)
    assert store.finished()[0].result == {"success": True, "steps": 3, "policy": A}
    assert store.by_policy() == [
        {"policy": A, "episodes": 1, "steps": 3, "faults": 0}, {"policy": B, "episodes": 0, "steps": 0, "faults": 1},
    ]  # fmt: skip
    assert store.by_token(again.token) == replace(again, expires_at=30.0)


def test_invalid_addresses():
    with pytest.raises(ValueError, match="names http://a:1 twice"):
        EvalConfig("libero_goal", policy_url="http://a:1,http://a:1/")
    with pytest.raises(ValueError, match="an empty address"):
        EvalConfig("libero_goal", policy_url="http://a:1,")
