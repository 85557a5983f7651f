"""Stateful policies: unknown sessions are refused, and a request sent twice is done once."""

import threading

import httpx
import pytest
from fakes import CountingPolicy, PickyPolicy, observe

from vla_contract import SessionLost
from vla_contract.protocol.codec import MEDIA_TYPE
from vla_contract.protocol.messages import decode_chunk, encode_observation
from vla_contract.server.sessions import SessionTable
from vla_contract.server.tenants import Tenant


def send(url, observation, request_id):
    headers = {"Content-Type": MEDIA_TYPE, "X-Request-Id": request_id}
    return httpx.post(url + "/v1/act", content=encode_observation(observation), headers=headers, timeout=30)


def test_an_unknown_session_is_lost(either_service, client):
    c = client(either_service(CountingPolicy()).url)
    with pytest.raises(SessionLost, match="unknown here and step is 4"):
        c.act(observe("new", 4))
    assert c.act(observe("new", 0)).actions[0, 0] == 1
    assert c.act(observe("new", 8)).actions[0, 0] == 2
    c.reset("new")
    with pytest.raises(SessionLost):
        c.act(observe("new", 9))


def test_a_policy_without_state_takes_any_step(either_service, client):
    c = client(either_service(CountingPolicy(stateful=False)).url)
    assert [c.act(observe("a", step)).actions.shape for step in (0, 5, 2)] == [(1, 7)] * 3


def test_step_zero_starts_again(either_service, client):
    c = client(either_service(CountingPolicy()).url)
    assert [c.act(observe("a", step)).actions[0, 0] for step in (0, 1, 2, 0, 1)] == [1, 2, 3, 1, 2]


def test_steps_only_go_up(either_service, client):
    c = client(either_service(CountingPolicy()).url)
    c.act(observe("a", 0)), c.act(observe("a", 5))
    for step in (5, 3):
        with pytest.raises(SessionLost, match="is at step 5 already"):
            c.act(observe("a", step))


def test_a_repeated_request_is_answered_from_memory(either_service):
    policy = CountingPolicy()
    url = either_service(policy).url
    for step, request_id in ((0, "r0"), (1, "r1")):
        answers = [send(url, observe("a", step), request_id) for _ in range(3)]
        assert [decode_chunk(answer.content).actions[0, 0] for answer in answers] == [step + 1] * 3
    assert policy.counts["a"] == 2
    page = httpx.get(url + "/metrics").text
    assert "vla_batch_size_count 2.0" in page and 'vla_requests_total{route="/v1/act",status="200"} 6.0' in page


def test_a_repeat_waits_for_the_first_that_still_runs(service):
    gate, entered = threading.Event(), threading.Event()

    class Gated(CountingPolicy):
        def act(self, observations):
            if observations[0].session == "a":
                entered.set()
                assert gate.wait(10)
            return super().act(observations)

    policy, answers = Gated(), []
    url = service(policy).url
    threads = [threading.Thread(target=lambda: answers.append(send(url, observe("a"), "same"))) for _ in range(3)]
    threads[0].start()
    assert entered.wait(10)
    for thread in threads[1:]:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join(10)
    assert [answer.status_code for answer in answers] == [200] * 3 and policy.counts["a"] == 1


def test_a_session_whose_policy_failed_is_lost(either_service):
    class Failing(PickyPolicy):
        """Stateful, and fails for a bad instruction."""

    policy = Failing(stateful=True)
    url = either_service(policy).url
    assert send(url, observe("a", 0), "r0").status_code == 200
    assert send(url, observe("a", 1, instruction="bad"), "r1").status_code == 500
    assert send(url, observe("a", 2), "r2").status_code == 409
    assert send(url, observe("b", 0, instruction="bad"), "r3").status_code == 500
    assert send(url, observe("c", 0), "r4").status_code == 200
    assert policy.resets == ["warm-up", "a", "b"]  # the policy is told of every session that is dropped


def test_an_expired_request_leaves_the_session_where_it_was(service):
    from fakes import GatedPolicy

    policy = GatedPolicy(stateful=True, max_batch=1)
    url = service(policy).url
    policy.gate.set()
    assert send(url, observe("a", 0), "r0").status_code == 200
    policy.gate.clear(), policy.entered.clear()
    blocker = threading.Thread(target=lambda: send(url, observe("b", 0), "b0"))
    blocker.start()
    assert policy.entered.wait(10)
    body = encode_observation(observe("a", 1))
    headers = {"Content-Type": MEDIA_TYPE, "X-Request-Id": "r1", "X-Timeout-S": "0.05"}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url + "/v1/act", content=body, headers=headers, timeout=0.3)
    policy.gate.set()
    blocker.join(10)
    assert send(url, observe("a", 1), "r1").status_code == 200
    assert [batch[0].step for batch in policy.batches if batch[0].session == "a"] == [0, 1]


def test_the_longest_unused_session_goes_first():
    import asyncio

    async def use():
        forgotten: list[str] = []
        table, tenant = SessionTable(forgotten.append, limit=2), Tenant("admin")
        for session, step in (("a", 0), ("b", 0), ("a", 1), ("c", 0)):
            observation = observe(session, step)
            assert table.answered(observation, f"{session}{step}") is None
            table.record(observation, f"{session}{step}", asyncio.get_running_loop().create_future(), tenant)
        return forgotten, len(table)

    assert asyncio.run(use()) == (["b"], 2)
