"""Named tokens: who is let in, whose turn it is, what each may use, and what others learn of it."""

import asyncio
import logging
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from fakes import EchoPolicy, observe
from test_batching import job

from vla_contract import PolicyClient, PolicyRefused, PolicyUnavailable
from vla_contract.client import client as client_module
from vla_contract.protocol.codec import MEDIA_TYPE
from vla_contract.protocol.messages import encode_observation
from vla_contract.protocol.problems import Problem
from vla_contract.server import tenants, token_file
from vla_contract.server.batching import BatchQueue
from vla_contract.server.fair_queue import FairQueue
from vla_contract.server.sessions import SessionTable
from vla_contract.server.tenants import Tenant
from vla_contract.server.token_file import TokenEntry

ADMIN = "the-services-own"


@pytest.fixture
def path(tmp_path):
    return token_file.path_on(tmp_path)


@pytest.fixture
def named(service, path, monkeypatch):
    """A function that serves a policy with a token file, which is read again at every request."""
    monkeypatch.setattr(tenants, "CHECK_S", 0.0)
    return lambda policy, **settings: service(policy, token=ADMIN, token_file=path, **settings).url


class GatedPolicy(EchoPolicy):
    """Answers, after the warm-up, once its gate is open."""

    def __init__(self, **info):
        super().__init__(**info)
        self.gate, self.asked = threading.Event(), threading.Event()

    def act(self, observations):
        if self.batches:
            self.asked.set()
            assert self.gate.wait(30)
        return super().act(observations)


def post(url, token, **changes):
    headers = {"Authorization": f"Bearer {token}", "Content-Type": MEDIA_TYPE}
    return httpx.post(f"{url}/v1/act", content=encode_observation(observe(**changes)), headers=headers, timeout=30)


# --- the file -----------------------------------------------------------------------------------------------


def test_the_file_has_hashes_and_is_its_owners_alone(path):
    os.umask(mask := os.umask(0))
    token = token_file.add(path, "alice", rate_per_s=2.5, concurrency=3)
    assert len(token) >= 43 and token.encode() not in b"".join(p.read_bytes() for p in path.parent.iterdir())
    assert {oct(p.stat().st_mode & 0o777) for p in path.parent.iterdir()} == {"0o600"} and mask is not None
    entry = token_file.load(path)["alice"]
    assert (entry.rate_per_s, entry.concurrency) == (2.5, 3)
    assert token_file.add(path, "alice", replace=True) != token
    assert token_file.load(path)["alice"].rate_per_s == 2.5  # a new token, the same limits


@pytest.mark.parametrize("name", ["", "admin", "a b", "a/b", "../x", "-a", "å", 'a"', "a\n", "x" * 65])
def test_a_name_that_is_none_is_rejected(path, name):
    with pytest.raises(ValueError, match="token name"):
        token_file.add(path, name)
    assert token_file.load(path) == {}


@pytest.mark.parametrize("limits", [{"rate_per_s": 0}, {"rate_per_s": float("nan")}, {"concurrency": 0}])
def test_a_limit_out_of_range_is_rejected(path, limits):
    with pytest.raises(ValueError, match=next(iter(limits))):
        token_file.add(path, "alice", **limits)


def test_names_are_added_once_and_removed_once(path):
    token_file.add(path, "alice")
    with pytest.raises(ValueError, match="remove"):
        token_file.add(path, "alice")
    with pytest.raises(ValueError, match="did you mean 'alice'"):
        token_file.remove(path, "alicia")
    token_file.remove(path, "alice")
    assert token_file.load(path) == {}


def test_concurrent_changes_are_all_kept(path):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: token_file.add(path, f"s{number}"), range(16)))
    assert set(token_file.load(path)) == {f"s{number}" for number in range(16)}
    assert {p.name for p in path.parent.iterdir()} == {path.name, f".{path.name}.lock"}


def test_a_planted_link_is_replaced_and_never_read(path, tmp_path):
    other = tmp_path / "other"
    token_file.add(other, "mallory")
    path.symlink_to(other)
    with pytest.raises(OSError, match=r"symbolic link|Too many levels"):
        token_file.load(path)
    before = other.read_bytes()
    path.unlink()
    path.with_name(f".{path.name}.lock").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match=r"symbolic link|Too many levels"):
        token_file.add(path, "alice")
    assert other.read_bytes() == before and not (tmp_path / "target").exists()


# --- who is let in ------------------------------------------------------------------------------------------


def test_a_token_works_from_its_addition_to_its_removal_without_a_restart(named, path, caplog):
    url = named(EchoPolicy())
    assert post(url, "vla_unknown").status_code == 401
    token = token_file.add(path, "alice")
    assert post(url, token).status_code == 200 and post(url, ADMIN).status_code == 200
    assert post(url, token[:-1]).status_code == 401
    assert httpx.get(f"{url}/v1/info", headers={"Authorization": token}).status_code == 401  # no scheme
    replaced = token_file.add(path, "alice", replace=True)
    assert (post(url, token).status_code, post(url, replaced).status_code) == (401, 200)
    token_file.remove(path, "alice")
    assert post(url, replaced).status_code == 401 and post(url, ADMIN).status_code == 200
    page = httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {ADMIN}"}).text
    shown = page + caplog.text
    assert not any(
        part in shown for part in (token, replaced, ADMIN, token_file.hashlib.sha256(token.encode()).hexdigest())
    )


@pytest.mark.parametrize("spoil", [lambda p: p.chmod(0o644), lambda p: p.write_text('{"tokens": {"a b": {}}}')])
def test_a_file_that_is_damaged_or_open_to_others_lets_nobody_in(named, path, spoil, caplog):
    token = token_file.add(path, "alice")
    url = named(EchoPolicy())
    assert post(url, token).status_code == 200
    with caplog.at_level(logging.ERROR):
        spoil(path)
        assert [post(url, token).status_code for _ in range(3)] == [401] * 3
        assert post(url, ADMIN).status_code == 200
    assert caplog.text.count(path.name) >= 1 and caplog.text.count("no named token") == 1  # once, not per request


def test_metrics_are_by_name_and_for_the_admin_only(named, path):
    tokens = {name: token_file.add(path, name) for name in ("alice", "bob")}
    url = named(EchoPolicy())
    for name, count in (("alice", 3), ("bob", 1)):
        for step in range(count):
            assert post(url, tokens[name], step=step).status_code == 200
    refused = httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {tokens['alice']}"})
    assert refused.status_code == 403 and "bob" not in refused.text
    page = httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {ADMIN}"}).text
    assert 'vla_token_requests_total{status="200",token="alice"} 3.0' in page
    assert 'vla_token_requests_total{status="403",token="alice"} 1.0' in page
    assert 'vla_token_inferences_total{token="bob"} 1.0' in page
    token_file.remove(path, "alice")
    page = httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {ADMIN}"}).text
    assert "alice" not in page and "bob" in page


def test_without_named_tokens_the_metrics_are_as_before(service, path):
    url = service(EchoPolicy(), token=ADMIN, token_file=path).url
    assert "vla_token" not in httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {ADMIN}"}).text


def test_sessions_of_two_tokens_do_not_meet(named, path, client):
    """Both use the name "demo", as notebooks do; a reset of everything reaches one's own only."""
    policy = EchoPolicy(stateful=True, max_batch=1)
    url = named(policy)
    alice, bob = (client(url, token=token_file.add(path, name), retries=0) for name in ("alice", "bob"))
    alice.act(observe("demo", 0)), bob.act(observe("demo", 0)), alice.act(observe("demo", 1))
    assert [batch[0].session for batch in policy.batches[-3:]] == ["alice/demo", "bob/demo", "alice/demo"]
    alice.reset_all("d")
    assert policy.resets[-1] == "alice/demo"
    bob.act(observe("demo", 1))
    with pytest.raises(PolicyUnavailable, match="session"):
        alice.act(observe("demo", 2))


# --- limits -------------------------------------------------------------------------------------------------


def test_a_rate_is_kept_and_the_client_waits_as_it_is_told(named, path, monkeypatch):
    slow = token_file.add(path, "slow", rate_per_s=0.2)
    url, requested = named(EchoPolicy()), []
    assert post(url, slow).status_code == 200
    limited = post(url, slow)
    problem = limited.json()
    assert limited.status_code == 429 and problem["type"].endswith("token-limit")
    assert 0 < problem["retry_after_s"] <= 5.0 and 1 <= int(limited.headers["Retry-After"]) <= 5
    assert limited.headers["Content-Type"] == "application/problem+json"
    assert "slow" in problem["detail"] and slow not in limited.text
    backoff = client_module.backoff_s
    monkeypatch.setattr(client_module, "backoff_s", lambda n, s=0.0: requested.append(s) or backoff(n, s))
    with PolicyClient(url, slow) as waits:
        assert waits.act(observe(step=3)).actions[0, 0] == 3
    assert requested and 0 < requested[0] <= 5.0


def test_concurrency_is_limited_per_token(named, path):
    policy = GatedPolicy(max_batch=1)
    one, two = token_file.add(path, "one", concurrency=2), token_file.add(path, "two")
    url = named(policy)
    with ThreadPoolExecutor(8) as pool:
        sent = [pool.submit(post, url, one, session=f"a{number}") for number in range(5)]
        limited = first_done(sent, 3)
        other = pool.submit(post, url, two)
        policy.gate.set()
        assert [done.result().status_code for done in limited] == [429] * 3 and other.result(60).status_code == 200
        assert sorted(done.result(60).status_code for done in sent) == [200, 200, 429, 429, 429]
    assert post(url, one).status_code == 200  # both places are free again


def first_done(sent, count):
    """Returns as many requests as have an answer while the policy's gate is closed, once there are `count`."""
    end = time.monotonic() + 60
    while sum(one.done() for one in sent) < count and time.monotonic() < end:
        time.sleep(0.01)
    return [one for one in sent if one.done()]


def test_the_bodies_of_one_token_take_a_part_of_the_budget(named, path):
    """Large bodies that wait for the policy: beyond its part the token is told to wait, others are answered."""
    policy = GatedPolicy(max_batch=1)
    flood, other = token_file.add(path, "flood", concurrency=64), token_file.add(path, "other")
    url = named(policy)
    large = {"images": {"agentview": np.zeros((2000, 1900, 3), np.uint8)}}  # 11.4 MB; 24 MiB are its part
    with ThreadPoolExecutor(6) as pool:
        sent = [pool.submit(post, url, flood, session=f"f{number}", **large) for number in range(4)]
        refused = first_done(sent, 2)
        small = pool.submit(post, url, other)
        policy.gate.set()
        assert [done.result().json()["type"].split(":")[-1] for done in refused] == ["token-limit"] * 2
        assert small.result(60).status_code == 200
        assert [done.result(60).status_code for done in sent].count(200) == 2


def in_progress(url, name):
    """Return how many requests of a token a service is working on, as its metrics say."""
    metrics = httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {ADMIN}"}, timeout=30).text
    return float(re.findall(rf'^vla_token_in_progress{{token="{name}"}} (.*)$', metrics, re.MULTILINE)[0])


def test_a_disconnected_request_frees_its_place(named, path):
    policy = GatedPolicy(max_batch=1)
    token = token_file.add(path, "alice", concurrency=1)
    url = named(policy)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": MEDIA_TYPE}
    with ThreadPoolExecutor(2) as pool:
        blocks = pool.submit(post, url, ADMIN)
        assert policy.asked.wait(60)
        with pytest.raises(httpx.TimeoutException):
            httpx.post(f"{url}/v1/act", content=encode_observation(observe("left")), headers=headers, timeout=1.0)
        end = time.monotonic() + 60
        while in_progress(url, "alice"):  # until the service has noticed, before the policy goes on
            assert time.monotonic() < end
            time.sleep(0.02)
        with PolicyClient(url, token, retries=0) as again:
            answer = pool.submit(again.act, observe("again", 7))
            policy.gate.set()
            assert answer.result(60).actions[0, 0] == 7 and blocks.result(60).status_code == 200
    assert "alice/left" not in {batch[0].session for batch in policy.batches}


# --- turns --------------------------------------------------------------------------------------------------


def entry(name):
    return TokenEntry("0" * 64, name)


def jobs_of(name, count):
    tenant = Tenant(name, entry(name))
    return [job(f"{name}{number}", tenant=tenant) for number in range(count)]


def test_a_single_tenants_jobs_leave_in_order():
    queue = FairQueue()
    jobs = jobs_of("a", 20)
    for one in jobs:
        queue.append(one)
    assert queue.pop(20, 20) == jobs and len(queue) == 0


def test_tenants_take_turns_and_idle_time_earns_nothing():
    queue = FairQueue()
    flood, late = jobs_of("flood", 40), jobs_of("late", 10)
    for one in flood:
        queue.append(one)
    alone = queue.pop(20, 20)
    assert alone == flood[:20]
    for one in late:
        queue.append(one)
    names = [one.tenant.name for one in queue.pop(20, 20)]
    assert names.count("late") == names.count("flood") == 10
    assert all(names[: 2 * count].count("late") in (count - 1, count, count + 1) for count in range(1, 11))


@pytest.mark.parametrize("seed", range(20))
def test_tenants_that_always_wait_get_equal_shares(seed):
    """For any numbers of waiting jobs: the answers of two tenants never differ by more than one."""
    rng = np.random.default_rng(seed)
    queue, answers = FairQueue(), dict.fromkeys("abcde", 0)
    tenants_ = {name: Tenant(name, entry(name)) for name in answers}
    for name in answers:
        for _ in range(int(rng.integers(1, 30))):
            queue.append(job(name, tenant=tenants_[name]))
    for _ in range(500):
        (done,) = queue.pop(1, 1)
        answers[done.tenant.name] += 1
        queue.append(job(done.tenant.name, tenant=done.tenant))
        assert max(answers.values()) - min(answers.values()) <= 1
    for waiting in queue.jobs():
        queue.remove(waiting)
    assert len(queue) == len(queue.tenants()) == 0


def test_a_queue_forgets_tenants_that_are_gone():
    queue = FairQueue()
    for number in range(5000):
        queue.append(jobs_of(f"s{number}", 1)[0])
        queue.pop(1, 1)
    assert len(queue._starts) <= 2 * token_file.MAX_TOKENS


def test_a_full_queue_takes_the_job_of_one_with_less_in_place_of_the_floods_newest():
    async def use():
        queue, loop = BatchQueue(8, 0.0), asyncio.get_running_loop()
        flood, others = jobs_of("flood", 8), [jobs_of(f"s{number}", 3) for number in range(2)]
        for one in (*flood, *others[0], *others[1]):
            one.future = loop.create_future()
        for one in flood:
            queue.put(one)
        with pytest.raises(Problem, match="full"):
            queue.put(flood[0])
        for one in (*others[0], *others[1]):
            if one is others[1][2]:  # 3, 3 and 2 wait: this one would have as many as the longest
                with pytest.raises(Problem, match="full"):
                    queue.put(one)
            else:
                queue.put(one)
        displaced = [one.future.exception().kind for one in flood if one.future.done()]
        assert displaced == ["queue-full"] * 5 and flood[-1].future.done() and len(queue) == 8

    asyncio.run(use())


def test_sessions_of_a_flood_leave_first():
    async def use():
        forgotten: list[str] = []
        table, flood, other = SessionTable(forgotten.append, limit=8), Tenant("flood"), Tenant("other")
        for session, tenant in [("other", other), *((f"f{number}", flood) for number in range(20))]:
            table.record(observe(session), session, asyncio.get_running_loop().create_future(), tenant)
        return forgotten, len(table)

    forgotten, size = asyncio.run(use())
    assert forgotten == [f"f{number}" for number in range(13)] and size == 8


@pytest.mark.parametrize(("limits", "flooded"), [(True, 2), (False, 4)])
def test_a_flood_has_its_part_of_a_batch_while_another_is_active(limits, flooded):
    """Of two active tokens each has half a batch of 4. The service's own token has no limit: it fills the batch."""

    async def use():
        queue = BatchQueue(64, 0.0)
        queue.max_batch = 4
        queue.record_inference(60.0, [])
        flood, other = Tenant("flood", entry("flood") if limits else None), Tenant("other", entry("other"))
        for number in range(40):
            queue.put(job(f"flood{number}", tenant=flood))
        queue.put(job("other-1", tenant=other))
        queue.record_inference(60.0, await queue.take())
        return [one.tenant.name for one in await asyncio.wait_for(queue.take(), 60)]

    assert asyncio.run(use()) == ["flood"] * flooded


def test_a_flood_starves_nobody(named, path):
    """While the policy is busy one token sends 12 requests, then three others send one: theirs are the next."""
    policy = GatedPolicy(max_batch=2)
    tokens = {name: token_file.add(path, name, concurrency=64) for name in ("flood", "a", "b", "c")}
    running_service = named(policy, queue_size=14, max_wait_ms=0)
    with ThreadPoolExecutor(20) as pool:
        blocks = pool.submit(post, running_service, ADMIN)
        assert policy.asked.wait(60)
        waiting = httpx.Client(base_url=running_service, headers={"Authorization": f"Bearer {ADMIN}"})

        def until_waiting(count):
            while f"vla_queue_length {count}.0" not in waiting.get("/metrics").text:
                time.sleep(0.01)

        sent = [pool.submit(post, running_service, tokens["flood"], session=f"f{n}", step=n) for n in range(12)]
        until_waiting(12)
        others = {name: pool.submit(post, running_service, tokens[name], step=7) for name in "abc"}
        displaced = first_done(sent, 1)  # 15 would wait, 14 have room
        until_waiting(14)
        policy.gate.set()
        assert {name: done.result(60).status_code for name, done in others.items()} == dict.fromkeys("abc", 200)
        assert [done.result().status_code for done in displaced] == [429] and blocks.result(60).status_code == 200
        assert sorted(done.result(60).status_code for done in sent) == [200] * 11 + [429]
    order = [one.session.partition("/")[0] for batch in policy.batches[2:] for one in batch]
    assert set(order[:4]) == {"flood", "a", "b", "c"}, order


def test_a_wrong_token_is_final_for_the_client(named):
    with PolicyClient(named(EchoPolicy()), "vla_of-nobody") as unknown, pytest.raises(PolicyRefused, match="token"):
        unknown.act(observe())
