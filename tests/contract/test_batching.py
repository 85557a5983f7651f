"""Requests of many workers become batches; one that fails does not take others along; the queue is bounded."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from fakes import EchoPolicy, GatedPolicy, PerRequestPolicy, PickyPolicy, SlowPolicy, chunk_of, observe, until

from vla_contract import InvalidObservation, Policy, PolicyClient, PolicyRefused, PolicyUnavailable
from vla_contract.protocol.codec import MEDIA_TYPE
from vla_contract.protocol.messages import encode_observation
from vla_contract.protocol.problems import Problem
from vla_contract.server.arrivals import MAX_CLIENTS, Arrivals
from vla_contract.server.batching import BatchQueue, InferenceJob
from vla_contract.server.tenants import Tenant


def together(count: int, act: Callable[[int], object]) -> list:
    """Returns what `act(i)` returned or raised for each i, all called at once."""
    results: list = [None] * count
    barrier = threading.Barrier(count)

    def one(index):
        barrier.wait()
        try:
            results[index] = act(index)
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=one, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def sizes(policy):
    return [len(batch) for batch in policy.batches if batch[0].session != "warm-up"]


@pytest.mark.parametrize(("max_batch", "own", "largest"), [(None, 16, 16), (4, 16, 4), (16, 2, 2), (None, 1, 1)])
def test_workers_share_batches(service, client, max_batch, own, largest):
    policy = SlowPolicy(0.05, max_batch=own)
    c = client(service(policy, max_batch=max_batch).url)
    results = together(12, lambda i: [c.act(observe(f"s{i}", step)) for step in range(3)])
    assert [[chunk.actions[0, 0] for chunk in chunks] for chunks in results] == [[0, 1, 2]] * 12
    assert sum(sizes(policy)) == 36
    assert max(sizes(policy)) <= largest
    if largest > 1:
        assert len(sizes(policy)) <= 36 / min(largest, 12) + 8


def test_everyone_gets_the_answer_to_his_own_question(service, client):
    class Pixel(SlowPolicy):
        def answer(self, observation):
            return chunk_of(float(observation.images["agentview"][0, 0, 0]))

    c = client(service(Pixel(0.01)).url)

    def ask(i):
        image = np.full((8, 8, 3), i, np.uint8)
        return [c.act(observe(f"s{i}", step, images={"agentview": image})).actions[0, 0] for step in range(5)]

    assert together(16, ask) == [[i] * 5 for i in range(16)]


def test_one_that_fails_fails_alone(service, client):
    c = client(service(SlowStart(PickyPolicy())).url)
    results = together(6, lambda i: c.act(observe(f"s{i}", 3, instruction="bad" if i == 2 else "good")))
    assert isinstance(results.pop(2), PolicyUnavailable)
    assert [chunk.actions[0, 0] for chunk in results] == [3] * 5


class SlowStart(Policy):
    """Passes everything on to another policy, 50 ms later."""

    def __init__(self, policy):
        self.policy, self.reset = policy, policy.reset

    def info(self):
        return self.policy.info()

    def act(self, observations):
        time.sleep(0.05)
        return self.policy.act(observations)


def test_a_policy_may_fail_requests_one_by_one(service, client):
    policy = PerRequestPolicy(
        {"refuse": InvalidObservation("the bowl is upside down; turn it"), "fail": KeyError("bowl")}, stateful=True
    )
    c = client(service(SlowStart(policy)).url)
    words = ["good", "refuse", "good", "fail", "good"]
    results = together(5, lambda i: c.act(observe(f"s{i}", instruction=words[i])))
    assert isinstance(results[1], PolicyRefused) and "turn it" in str(results[1])
    assert isinstance(results[3], PolicyUnavailable) and "KeyError" in str(results[3])
    assert [results[i].actions.shape for i in (0, 2, 4)] == [(1, 7)] * 3


def post(url, session, **headers):
    body = encode_observation(observe(session))
    return httpx.post(url + "/v1/act", content=body, headers={"Content-Type": MEDIA_TYPE, **headers}, timeout=30)


def test_a_full_queue_answers_429(service):
    policy = GatedPolicy(max_batch=1)
    url = service(policy, queue_size=2).url
    answers: list = []
    first = threading.Thread(target=lambda: answers.append(post(url, "first")))
    first.start()
    assert policy.entered.wait(10)
    waiting = [threading.Thread(target=lambda i=i: answers.append(post(url, f"w{i}"))) for i in range(2)]
    for thread in waiting:
        thread.start()
    while "vla_queue_length 2.0" not in httpx.get(url + "/metrics").text:
        time.sleep(0.01)
    refused = post(url, "one too many")
    assert refused.status_code == 429 and int(refused.headers["Retry-After"]) >= 1
    assert refused.json()["queue_size"] == 2 and refused.json()["retry_after_s"] >= 0
    assert httpx.get(url + "/readyz").status_code == 200  # busy is not broken
    policy.gate.set()
    for thread in [first, *waiting]:
        thread.join(10)
    assert [answer.status_code for answer in answers] == [200] * 3


def test_clients_come_back_after_429(service):
    policy = SlowPolicy(0.02, max_batch=1)
    url = service(policy, queue_size=1).url

    def ask(i):
        with PolicyClient(url, retries=50) as c:
            return [c.act(observe(f"s{i}", step)).actions[0, 0] for step in range(2)]

    assert together(6, ask) == [[0, 1]] * 6
    assert sum(sizes(policy)) == 12


def test_nobody_works_for_a_sender_that_has_gone(service, client):
    policy = GatedPolicy(max_batch=1)
    url = service(policy).url
    results: list = []
    first = threading.Thread(target=lambda: results.append(post(url, "first").status_code))
    first.start()
    assert policy.entered.wait(10)
    late = threading.Thread(target=lambda: results.append(post(url, "late", **{"X-Timeout-S": "0.05"})))
    late.start()
    while late.is_alive() and "vla_queue_length 1.0" not in httpx.get(url + "/metrics").text:
        time.sleep(0.01)
    time.sleep(0.3)
    policy.gate.set()
    first.join(10), late.join(10)
    answer = next(result for result in results if result != 200)
    assert answer.status_code == 504 and answer.json()["type"].endswith("expired")
    assert [batch[0].session for batch in policy.batches] == ["warm-up", "first"]


def test_resets_take_their_turn_on_the_policy_thread(service, client):
    policy = EchoPolicy()
    c = client(service(policy).url)
    c.act(observe("a"))
    c.reset("a")
    assert policy.resets == ["warm-up", "a"] and len(policy.threads) == 1


def test_a_request_that_waits_is_given_up_when_its_session_is_reset(service, client):
    """It belongs to an episode that is over: run after the reset it would be the first step of the next one."""
    policy, answers = GatedPolicy(), []
    url = service(policy).url
    threads = [threading.Thread(target=lambda name=name: answers.append((name, post(url, name)))) for name in "ab"]
    threads[0].start()
    assert policy.entered.wait(10)
    threads[1].start()
    while "vla_queue_length 1.0" not in httpx.get(url + "/metrics").text:
        time.sleep(0.01)
    reset = threading.Thread(target=client(url).reset, args=("b",))
    reset.start()
    threads[1].join(10)
    policy.gate.set()
    threads[0].join(10), reset.join(10)
    assert [(name, answer.status_code) for name, answer in answers] == [("b", 504), ("a", 200)]
    assert [batch[0].session for batch in policy.batches] == ["warm-up", "a"] and policy.resets == ["warm-up", "b"]


def test_a_policy_settles_only_when_no_request_waits(service, client):
    calls = []

    class Settling(GatedPolicy):
        def act(self, observations):
            answers = super().act(observations)
            calls.extend("act" for observation in observations if observation.session != "warm-up")
            return answers

        def settle(self):
            calls.append("settle")

    policy = Settling(max_batch=1)
    running = service(policy)
    c = client(running.url)
    queue = running.app.state.engine.queue
    with ThreadPoolExecutor(6) as pool:
        requests = [pool.submit(c.act, observe(f"s{i}")) for i in range(6)]
        until(lambda: policy.entered.is_set() and len(queue) == 5)
        policy.gate.set()
    assert all(request.result() for request in requests)
    until(lambda: "settle" in calls)
    assert calls[:6] == ["act"] * 6


def test_a_failing_reset_is_a_problem(service, client):
    class Stubborn(EchoPolicy):
        def reset(self, session):
            assert session == "warm-up", "no"

    c = client(service(Stubborn()).url)
    with pytest.raises(PolicyUnavailable, match="could not reset"):
        c.reset("a")
    assert c.act(observe()).actions.shape == (1, 7)


TENANT = Tenant("admin")


def job(client, queued=None, tenant=TENANT):
    return InferenceJob(
        observe(client or "nameless"), None, client, tenant, time.monotonic() + 60, queued or time.monotonic()
    )


class TestCompany:
    """When a client is due: after its usual pause, and no more once it is late."""

    def habit(self, pause_s):
        """Return the arrivals of a client that asks three times, and the time of its last answer."""
        arrivals = Arrivals()
        for time_s in (100.0, 100.0 + pause_s, 100.0 + 2 * pause_s):
            self.ask(arrivals, time_s)
        return arrivals, 100.0 + 2 * pause_s

    def ask(self, arrivals, time_s):
        arrivals.asks("worker", time_s, TENANT)
        arrivals.leaves_queue("worker")
        arrivals.answered("worker", time_s)

    @pytest.mark.parametrize(
        ("pause_s", "after_s", "limit_s", "lowest_s", "highest_s"),
        [
            pytest.param(0.05, 0.0, 1.0, 0.05, 0.2, id="one that is due is waited for"),
            pytest.param(0.5, 0.0, 0.1, 0.0, 0.0, id="one that takes longer than the wait is not"),
            pytest.param(0.05, 0.3, 1.0, -1.0, 0.3, id="one that is late is not"),
        ],
    )
    def test_a_client_with_a_usual_pause(self, pause_s, after_s, limit_s, lowest_s, highest_s):
        arrivals, at = self.habit(pause_s)
        assert lowest_s <= arrivals.due(at + after_s, at + after_s + limit_s, 1.0) - at <= highest_s + 1e-9

    def test_one_that_waits_already_is_not(self):
        arrivals, at = self.habit(0.05)
        arrivals.asks("worker", at + 0.05, TENANT)
        assert arrivals.due(at + 0.05, at + 1.0, 1.0) == at + 0.05

    def test_a_long_inference_does_not_make_it_forgotten(self):
        arrivals = Arrivals()
        arrivals.asks("new", 0.0, TENANT)
        arrivals.leaves_queue("new")
        assert arrivals.due(5.0, 6.0, infer_s=4.0) == 6.0 and arrivals.due(5.0, 6.0, infer_s=0.1) <= 5.0

    def test_an_episodes_end_is_no_habit(self):
        arrivals, at = self.habit(0.05)
        self.ask(arrivals, at + 5.0)
        assert arrivals.due(at + 5.0, at + 6.0, 1.0) < at + 5.2

    def test_few_are_remembered(self):
        arrivals = Arrivals()
        for number in range(3 * MAX_CLIENTS):
            arrivals.asks(f"client {number}", float(number), TENANT)
        assert len(arrivals._clients) == MAX_CLIENTS


class TestQueue:
    """The rules by which batches are cut, without a server."""

    def queue(self, infer_s=1.0, **settings):
        queue = BatchQueue(**{"size": 8, "max_wait_s": 0.2, **settings})
        queue.max_batch = 4
        queue.record_inference(infer_s, [])
        return queue

    def take(self, queue, arrives=None):
        """Takes a batch; returns its size and the waits for arrivals: seconds allowed, and whether a job ended it.

        arrives: called during the first wait.
        """
        waits, wait = [], queue._wait

        async def watch(seconds):
            if arrives and not waits:
                asyncio.get_running_loop().call_soon(arrives)
            waits.append((seconds, await wait(seconds)))

        queue._wait = watch
        try:
            return len(asyncio.run(asyncio.wait_for(queue.take(), 10))), waits
        finally:
            queue._wait = wait

    def test_a_lone_client_does_not_wait(self):
        queue = self.queue(max_wait_s=5.0)
        queue.put(job("a"))
        assert self.take(queue) == (1, [])

    def test_a_full_batch_does_not_wait(self):
        queue = self.queue(max_wait_s=5.0)
        for client in "abcdef":
            queue.put(job(client))
        assert self.take(queue) == (4, [])
        queue.put(job("g")), queue.put(job("h"))
        assert self.take(queue) == (4, []) and len(queue) == 0

    def test_the_wait_ends_when_the_last_known_client_asks(self):
        queue = self.queue(max_wait_s=5.0)
        for client in "ab":
            queue.put(job(client))
        assert self.take(queue)[0] == 2
        queue.put(job("a"))
        size, waits = self.take(queue, lambda: queue.put(job("b")))
        assert size == 2 and waits and all(woken for _, woken in waits)

    def test_the_wait_is_bounded(self):
        queue = self.queue(max_wait_s=0.3)
        queue.put(job("a")), queue.put(job("b")), self.take(queue)
        queue.put(job("a"))
        size, waits = self.take(queue)
        assert size == 1 and waits and all(seconds <= 0.3 and not woken for seconds, woken in waits)

    def test_the_wait_begins_when_the_policy_is_free(self):
        """Three that asked while an inference ran do not go without the fourth, which has just had its answer."""
        queue, fourth = self.queue(infer_s=2.0, max_wait_s=5.0), job("d")
        queue.put(fourth), self.take(queue)
        for client in "abc":
            queue.put(job(client, queued=time.monotonic() - 2.0))
        queue.record_inference(2.0, [fourth])
        size, waits = self.take(queue, lambda: queue.put(job("d")))
        assert size == 4 and waits and all(woken for _, woken in waits)

    def test_who_leaves_the_queue_is_waited_for_no_more(self):
        queue = self.queue(infer_s=2.0, max_wait_s=5.0)
        gone = job("gone")
        queue.put(gone), queue.put(job("a"))
        assert queue.remove(gone) and not queue.remove(gone) and len(queue) == 1
        assert self.take(queue) == (1, [])

    def test_who_has_no_name_is_not_expected(self):
        queue = self.queue(max_wait_s=5.0)
        queue.put(job("")), queue.put(job("a"))
        assert self.take(queue)[0] == 2
        queue.put(job("a"))
        assert self.take(queue) == (1, [])

    def test_nobody_waits_longer_than_a_fast_policy_is_worth(self):
        queue = self.queue(infer_s=0.0001, max_wait_s=5.0)
        queue.put(job("a")), queue.put(job("b")), self.take(queue)
        queue.put(job("a"))
        size, waits = self.take(queue)
        assert size == 1 and all(seconds <= 0.0001 for seconds, _ in waits)

    def test_a_full_queue_says_when_to_come_back(self):
        queue = self.queue(infer_s=3.0, size=8)
        for client in "abcdefgh":
            queue.put(job(client))
        with pytest.raises(Problem) as caught:
            queue.put(job("i"))
        assert caught.value.status == 429
        assert caught.value.extra["retry_after_s"] == 6.0 and caught.value.headers["Retry-After"] == "6"
