"""The store behind HTTP, call by call: each may be repeated, and nothing but an episode's own files is taken."""

import hashlib
import json
import secrets
import socket
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

import pytest

from vla_evaluation import hosts
from vla_evaluation.coordinator import calls
from vla_evaluation.coordinator.app import CALL_BYTES, Coordinator, coordinating
from vla_evaluation.coordinator.calls import ActiveRun
from vla_evaluation.runs.directories import DIRECTORIES
from vla_evaluation.store.records import StoreError
from vla_evaluation.store.remote import Joined, RemoteStore
from vla_evaluation.store.runstore import RunStore
from vla_evaluation.workers.job import InvocationClock

RESULT = {"success": True, "steps": 7}


class Rules:
    """What of a job the calls look at."""

    lease_s, retries, policies = 30.0, 1, ()


@pytest.fixture
def run(tmp_path):
    """A run of three episodes whose evaluator listens, and the store itself."""
    for name in DIRECTORIES:
        (tmp_path / "run" / name).mkdir(parents=True)
    plan = [(0, episode) for episode in range(3)]
    store = RunStore.create(tmp_path / "run/run.sqlite", suite="suite", config_hash="c" * 16, plan=plan, meta={})
    clock = InvocationClock.start()
    active = ActiveRun(tmp_path / "run", Rules(), clock, store.begin_invocation(clock.now()))
    with store, coordinating("127.0.0.1:0", None, Coordinator(active, {})) as coordinator:
        yield coordinator, store


@pytest.fixture
def remote(run, tmp_path):
    (tmp_path / "far/videos").mkdir(parents=True)
    joined = Joined(run[0].url, run[0].run.invocation, "two", secrets.token_hex(8), 2.0, {})
    with_store = RemoteStore(tmp_path / "far", joined, None)
    yield with_store
    with_store.close()


def leased(remote):
    return remote.lease("two.worker-0", 0, 0.0, 0.0, None)


def drafted(remote, content=b"an episode"):
    path = remote.directory / "draft.npz"
    path.write_bytes(content)
    return path


def twice(remote, name, /, **sent):
    first, second = remote.call(name, **sent), remote.call(name, **sent)
    assert first == second
    return first


def test_every_call_may_be_repeated(run, remote):
    coordinator, store = run
    assert twice(remote, "join", name="two", workers=1, machine={"cores": 2}) == {"name": "two"}
    one = twice(remote, "lease", worker="two.worker-0", prefer_task=None, token="7" * 16)
    assert one["episode"] == 0 and store.counts()[0]["leased"] == 1
    assert twice(remote, "heartbeat", lease=one, steps=3)
    twice(remote, "say", worker="two.worker-0", status="at it")
    assert twice(remote, "fail", lease=one, error="no answer", by_policy=False)
    assert [fault.error for fault in store.faults()] == ["no answer"] and store.counts()[0]["pending"] == 3
    other = leased(remote)
    assert remote.finish_with(other, RESULT, 0.0, drafted(remote), None)
    assert twice(remote, "finish", lease=asdict(other), result=RESULT)
    assert remote.finish_with(other, RESULT, 0.0, drafted(remote, b"another"), None)
    assert [(row.task, row.episode) for row in store.finished()] == [(0, other.episode)]
    third = leased(remote)
    assert remote.call("release", lease=asdict(third)) and not remote.call("release", lease=asdict(third))
    assert store.counts()[0]["pending"] == 2
    twice(remote, "leave")
    assert coordinator.active_hosts() == []


def test_counts_are_fresh_for_the_caller_that_changes_them(run, remote):
    assert remote.counts()[0]["pending"] == 3
    lease = leased(remote)
    assert remote.counts()[0]["leased"] == 1 and remote.counts() == run[1].counts()
    assert remote.finish_with(lease, RESULT, 0.0, drafted(remote), None)
    assert remote.counts()[0]["done"] == 1 and remote.counts() == run[1].counts()


def test_prometheus_gets_states_and_shares(run, remote):
    remote.call("join", name="two", workers=1, machine={})
    assert remote.finish_with(leased(remote), RESULT, 0.0, drafted(remote), None)
    page = urllib.request.urlopen(f"{run[0].url}/metrics", timeout=30).read().decode()
    for line in (
        'vla_run_episodes{state="done"} 1.0', 'vla_run_episodes{state="pending"} 2.0', "vla_run_machines 1.0",
        'vla_machine_episodes{host="two"} 1.0', 'vla_machine_steps{host="two"} 7.0',
        'vla_machine_faults{host="two"} 0.0', 'vla_requests_total{route="/v1/files",status="200"} 1.0',
    ):  # fmt: skip
        assert line in page.splitlines()


def test_files_come_under_names_that_the_run_makes(run, remote):
    coordinator, _ = run
    lease, directory = leased(remote), coordinator.run.directory
    assert remote.finish_with(lease, RESULT, 0.0, drafted(remote), None)
    assert (directory / "episodes/00-00.npz").read_bytes() == b"an episode"
    for name in ("film.mp4", "still.jpg"):
        (remote.directory / "videos" / name).write_bytes(name.encode())
    remote.add_to_result(lease, {"video": "videos/film.mp4", "still": "videos/still.jpg", "video_frames": 2})
    assert (directory / "videos/00-00.mp4").read_bytes() == b"film.mp4"
    assert not [*remote.directory.glob("videos/*")]
    assert {path.name for path in directory.rglob("*.*") if "sqlite" not in path.name} == {
        "00-00.npz", "00-00.mp4", "00-00.jpg",
    }  # fmt: skip


def test_lost_lease_stores_nothing(run, remote):
    coordinator, store = run
    lease = leased(remote)
    assert [fault.status for fault in remote.take_back("two.worker-0", 0.0, 0, "it is gone")] == ["lost"]
    assert not remote.heartbeat(lease, 0.0, 0.0)
    assert not remote.finish_with(lease, RESULT, 0.0, drafted(remote), None)
    assert not store.finished() and not [*(coordinator.run.directory / "episodes").iterdir()]


def test_finish_requires_the_episode_file(run, remote):
    lease = leased(remote)
    with pytest.raises(StoreError, match="was not sent before"):
        remote.call("finish", lease=asdict(lease), result=RESULT)
    assert run[1].counts()[0]["leased"] == 1


NAN, HALF = float("nan"), "a\ud800"
DELAYS = {"held_steps": 1, "overtaken_actions": 0, "latency_ms_mean": 1.0, "latency_ms_max": 2.0}
JOIN = {"name": "two", "workers": 1, "machine": {"cores": 2}}
ASK = {"worker": "two.worker-0", "token": "7" * 16}


@pytest.mark.parametrize(
    ("name", "sent", "field"),
    [
        ("join", {**JOIN, "name": HALF}, "JSON"),
        ("join", {**JOIN, "name": "a\x1b[2J"}, "name"),
        ("join", {**JOIN, "name": "a" * 65}, "name"),
        ("join", {**JOIN, "name": ""}, "name"),
        ("join", {**JOIN, "workers": 0}, "workers"),
        ("join", {**JOIN, "workers": 10**6}, "workers"),
        ("join", {**JOIN, "machine": {"memory_gb": NAN}}, "machine.memory_gb"),
        ("join", {**JOIN, "machine": {"system": "a" * 10_000}}, "machine.system"),
        ("join", {**JOIN, "machine": {f"fact {n}": 1 for n in range(21)}}, "machine"),
        ("lease", {**ASK, "worker": 3}, "worker"),
        ("lease", {**ASK, "worker": "a" * 129}, "worker"),
        ("lease", {**ASK, "prefer_task": 2**63}, "prefer_task"),
        ("lease", {**ASK, "token": "short"}, "token"),
        ("lease", {**ASK, "token": "../../../../outside"}, "token"),
        ("lease", {**ASK, "policies": ["http://127.0.0.1:1"]}, "policies"),
        ("say", {"worker": "a\x00", "status": ""}, "worker"),
        ("leases", {"prefix": "a" * 129}, "prefix"),
    ],
)
def test_invalid_arguments_are_rejected(run, remote, name, sent, field):
    with pytest.raises(StoreError, match=field) as refused:
        remote.call(name, **sent)
    assert "Traceback" not in str(refused.value) and "internal" not in str(refused.value)
    assert_serves(run, remote)


@pytest.mark.parametrize(
    ("name", "sent", "field"),
    [
        ("heartbeat", {"lease": {"task": "../x"}}, "lease"),
        ("heartbeat", {"steps": -1}, "steps"),
        ("heartbeat", {"steps": NAN}, "steps"),
        ("finish", {"lease": None}, "lease"),
        ("finish", {"result": 5}, "result"),
        ("finish", {"result": {**RESULT, "steps": 2**62}}, "result.steps"),
        ("finish", {"result": {**RESULT, "success": "yes"}}, "result.success"),
        ("finish", {"result": {**RESULT, "timings_ms": 5}}, "result.timings_ms"),
        ("finish", {"result": {**RESULT, "timings_ms": {"total": "NaN"}}}, "result.timings_ms.total"),
        ("finish", {"result": {**RESULT, "timings_ms": {"total": NAN}}}, "result.timings_ms.total"),
        ("finish", {"result": {**RESULT, "timings_ms": {"total": float("inf")}}}, "result.timings_ms.total"),
        ("finish", {"result": {**RESULT, "timings_ms": {"total": 10**400}}}, "result.timings_ms.total"),
        ("finish", {"result": {**RESULT, "realtime": {**DELAYS, "latency_ms_max": NAN}}}, "latency_ms_max"),
        ("finish", {"result": {**RESULT, "more": {"deep": [NAN]}}}, "result.more"),
        ("finish", {"result": {**RESULT, "recording": "../../secret.npz"}}, "result.recording"),
        ("finish", {"result": {**RESULT, "policy_error": HALF}}, "JSON"),
        ("fail", {"error": "a" * 10_001}, "error"),
        ("add_to_result", {"more": {}, "files": 5}, "files"),
        ("add_to_result", {"more": {}, "files": ["episode"]}, "files"),
        ("add_to_result", {"more": {"still": "videos/../../../secret.jpg"}}, "more.still"),
        ("add_to_result", {"more": {"video_ms": NAN}}, "more.video_ms"),
        ("add_to_result", {"more": {"success": True}}, "more.success"),
    ],
)
def test_invalid_lease_fields_are_rejected(run, remote, name, sent, field):
    lease = leased(remote)
    whole = {"lease": asdict(lease), "steps": 1, "result": RESULT, "error": "none", "more": {}}
    needed = {"heartbeat": ("lease", "steps"), "finish": ("lease", "result"), "fail": ("lease", "error")}
    arguments = {key: whole[key] for key in needed.get(name, ("lease", "more"))} | sent
    with pytest.raises(StoreError, match=field) as refused:
        remote.call(name, **arguments)
    assert "Traceback" not in str(refused.value) and "internal" not in str(refused.value)
    assert run[1].counts()[0]["leased"] == 1 and remote.release(lease)
    assert_serves(run, remote)


def assert_serves(run, remote):
    """The run can be resumed, and what the coordinator, its own progress and other programs read can be read."""
    coordinator, store = run
    assert remote.finish_with(leased(remote), {**RESULT, "timings_ms": {"total": 3.5}}, 0.0, drafted(remote), None)
    for page in ("readyz", "metrics", "v1/run"):
        assert urllib.request.urlopen(f"{coordinator.url}/{page}", timeout=30).status == 200
    assert [row.result["timings_ms"]["total"] for row in store.finished()] == [3.5]
    assert [share.seconds for share in hosts.shares(store.by_worker(), {})] == [0.0035]
    assert not store.missing_videos(10**9, lambda success, place: False)


def test_a_number_of_machines_and_workers_can_join_and_no_more(run, remote, monkeypatch):
    monkeypatch.setattr(calls, "MAX_MACHINES", 3)
    monkeypatch.setattr(calls, "MAX_WORKERS", 2)
    for number in range(3):
        remote.joined = replace(remote.joined, key=f"key-{number}")
        assert remote.call("join", **JOIN)["name"] == ("two" if not number else f"two-{number + 1}")
    remote.joined = replace(remote.joined, key="another")
    with pytest.raises(StoreError, match="3 machines"):
        remote.call("join", **JOIN)
    for worker in ("a", "b", "a"):
        remote.call("say", worker=worker, status="at it")
    for name, more in (("say", {"status": "at it"}), ("lease", {"token": "7" * 16})):
        with pytest.raises(StoreError, match="2 workers"):
            remote.call(name, worker="c", **more)
    assert set(run[1].workers()) == {"a", "b"} and run[1].counts()[0]["leased"] == 0


def test_calls_in_one_transaction_fail_alone(run, remote, monkeypatch):
    """While the database is locked calls wait, and then are one transaction."""
    coordinator, store = run
    lease = leased(remote)

    def broken(*_):
        raise TypeError("a fault of the program")

    monkeypatch.setattr(calls.Calls, "faults", broken)
    sent = [("say", {"worker": "w", "status": f"{number}"}) for number in range(20)]
    sent[5:5] = [("faults", {}), ("finish", {"lease": asdict(lease), "result": RESULT})]
    sent.append(("add_to_result", {"lease": asdict(lease), "more": {}, "files": 5}))
    headers = {"Content-Type": "application/json"}

    def status(call):
        name, arguments = call
        body = json.dumps({**arguments, "invocation": coordinator.run.invocation, "key": "k"}).encode()
        try:
            request = urllib.request.Request(f"{coordinator.url}/v1/calls/{name}", body, headers)
            return urllib.request.urlopen(request, timeout=30).status
        except urllib.error.HTTPError as error:
            return error.code

    with ThreadPoolExecutor(len(sent)) as pool:
        store.db.execute("BEGIN IMMEDIATE")
        answers = [pool.submit(status, call) for call in sent]
        assert answers[-1].result() == 400, "the store was asked"
        store.db.execute("COMMIT")
        statuses = [answer.result() for answer in answers]
    assert statuses == [*[200] * 5, 500, 400, *[200] * 15, 400]
    assert store.counts()[0]["leased"] == 1


def test_unknown_call_is_not_found(remote):
    with pytest.raises(StoreError, match="'meta'.*join"):
        remote.call("meta")


def test_oversized_call_is_rejected_by_its_header(run):
    """A call has less room than a file; its body is not waited for."""
    host, port = run[0].url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 20) as raw:
        head = f"POST /v1/calls/join HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        raw.sendall(f"{head}Content-Length: {CALL_BYTES + 1}\r\n\r\n".encode())
        answer = raw.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 ")
    with pytest.raises(urllib.error.HTTPError) as refused:
        request = urllib.request.Request(
            f"{run[0].url}/v1/calls/join", b"x" * (CALL_BYTES + 1), {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=30)
    assert refused.value.code == 413 and json.load(refused.value)["max_body_bytes"] == CALL_BYTES


def test_a_task_that_leads_elsewhere_reaches_no_file(run, remote):
    """Paths are made of the lease in the store, not of what is sent."""
    lease = leased(remote)
    for changed in (replace(lease, task=7), replace(lease, episode=2)):
        assert not remote.finish_with(changed, RESULT, 0.0, drafted(remote), None)
    assert not run[1].finished() and not [*run[0].run.directory.glob("*/*.npz")]


def test_a_damaged_file_and_another_invocation(run, remote):
    lease = leased(remote)
    query = (
        f"kind=episode&token={lease.token}&invocation={run[0].run.invocation}&sha256={hashlib.sha256(b'a').hexdigest()}"
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        headers = {"Content-Type": "application/octet-stream"}
        urllib.request.urlopen(urllib.request.Request(f"{run[0].url}/v1/files?{query}", b"b", headers), timeout=30)
    assert refused.value.code == 400 and "SHA-256" in json.load(refused.value)["detail"]
    remote.joined = replace(remote.joined, invocation=99)
    with pytest.raises(StoreError, match="join it again"):
        remote.open()
    run[0].end_reason = "the run was stopped"
    with pytest.raises(StoreError, match="the run was stopped"):
        remote.open()


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}])
@pytest.mark.parametrize("route", ["/v1/run", "/readyz", "/metrics", "/v1/calls/join"])
def test_another_sites_page_reads_and_changes_nothing(run, route, headers):
    """Without a token, by DNS rebinding."""
    body = b"{}" if "calls" in route else None
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(f"{run[0].url}{route}", body, headers), timeout=30)
    assert caught.value.code == 403


def test_batch_is_one_transaction_with_separate_rollbacks(run):
    _, store = run
    with store.transaction():
        first = store.lease("a", 1, 0.0, 30.0)
        with pytest.raises(RuntimeError), store.transaction():
            store.db.execute("DELETE FROM episodes")
            raise RuntimeError
        assert store.finish(first, RESULT, 1.0)
    assert store.counts()[0]["done"] == 1 and store.counts()[0]["planned"] == 3
    with pytest.raises(RuntimeError), store.transaction():
        store.lease("b", 1, 0.0, 30.0)
        raise RuntimeError
    assert store.counts()[0]["leased"] == 0
