"""The run store: leases, takeover, retries, resume, and what happens when its disk misbehaves."""

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from vla_evaluation.store.records import StoreError
from vla_evaluation.store.runstore import RunStore

PLAN = [(task, episode) for task in range(3) for episode in range(4)]
LEASE_S = 10.0


def make_store(directory: Path, plan=PLAN) -> RunStore:
    return RunStore.create(
        directory / "run.sqlite", suite="libero_goal", config_hash="abc", plan=plan, meta={"identity": {"seed": 0}}
    )


def result(success=True, steps=7, **facts):
    return {"success": success, "steps": steps, **facts}


@pytest.fixture
def store(tmp_path):
    with make_store(tmp_path) as store:
        yield store


def total(store, key):
    return sum(row[key] for row in store.counts().values())


def test_worker_stays_with_its_task_and_workers_spread(store):
    invocation = store.begin_invocation(0.0)
    first = store.lease("a", invocation, 0.0, LEASE_S)
    second = store.lease("b", invocation, 0.0, LEASE_S)
    assert (first.task, first.episode) == (0, 0)
    assert (second.task, second.episode) == (1, 0)
    again = store.lease("a", invocation, 0.0, LEASE_S, prefer_task=0)
    assert (again.task, again.episode) == (0, 1)
    assert store.lease("c", invocation, 0.0, LEASE_S).task == 2


def test_every_episode_is_leased_once_and_then_none(store):
    invocation = store.begin_invocation(0.0)
    leases = [store.lease("a", invocation, 0.0, LEASE_S) for _ in PLAN]
    assert sorted((lease.task, lease.episode) for lease in leases) == PLAN
    assert store.lease("a", invocation, 0.0, LEASE_S) is None


def test_heartbeat_keeps_and_silence_loses_a_lease(store):
    invocation = store.begin_invocation(0.0)
    lease = store.lease("a", invocation, 0.0, LEASE_S)
    assert store.heartbeat(lease, 8.0, LEASE_S, steps=3)
    assert store.counts()[0]["steps"] == 3
    assert store.expire(12.0, retries=2) == []
    lost = store.expire(18.5, retries=2)
    assert [(f.task, f.episode, f.worker, f.status) for f in lost] == [(0, 0, "a", "lost")]
    assert not store.heartbeat(lease, 19.0, LEASE_S)
    taken = store.lease("b", invocation, 19.0, LEASE_S, prefer_task=0)
    assert (taken.task, taken.episode, taken.attempt) == (0, 0, 2)


def test_a_late_report_of_a_lost_lease_changes_nothing(store):
    invocation = store.begin_invocation(0.0)
    zombie = store.lease("a", invocation, 0.0, LEASE_S)
    store.expire(11.0, retries=2)
    heir = store.lease("b", invocation, 11.0, LEASE_S, prefer_task=0)
    published = []
    assert not store.finish(zombie, result(False), 12.0, lambda: published.append("zombie"))
    assert store.finish(heir, result(True), 13.0, lambda: published.append("heir"))
    assert not store.finish(zombie, result(False), 14.0)
    assert not store.finish(heir, result(False), 15.0), "a second report of the same lease counted"
    assert published == ["heir"]
    [done] = store.finished()
    assert (done.success, done.attempt, done.worker) == (True, 2, "b")


def test_the_schema_itself_refuses_a_second_result(store):
    invocation = store.begin_invocation(0.0)
    store.finish(store.lease("a", invocation, 0.0, LEASE_S), result(), 1.0)
    with pytest.raises(sqlite3.IntegrityError):
        store.db.execute(
            "INSERT INTO episodes (config_hash, suite, task, episode, attempt, status) "
            "VALUES ('abc', 'libero_goal', 0, 0, 2, 'done')"
        )


def test_errors_are_retried_a_bounded_number_of_times_and_never_counted(tmp_path):
    with make_store(tmp_path, plan=[(0, 0)]) as store:
        invocation = store.begin_invocation(0.0)
        for attempt in (1, 2, 3):
            lease = store.lease("a", invocation, 0.0, LEASE_S)
            assert lease.attempt == attempt
            assert store.fail(lease, "server gone", 1.0, retries=2)
        assert store.lease("a", invocation, 2.0, LEASE_S) is None
        assert store.counts()[0]["broken"] == 1 and store.counts()[0]["done"] == 0
        assert [f.error for f in store.faults(invocation)] == ["server gone"] * 3
        later = store.begin_invocation(3.0)
        assert store.lease("a", later, 3.0, LEASE_S).attempt == 4, "resume gives fresh tries"


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_invalid_json_result_is_rejected_and_retried(store, number):
    """The worker that gets the error ends, so this is a fault of the machinery and no result."""
    invocation = store.begin_invocation(0.0)
    lease = store.lease("a", invocation, 0.0, LEASE_S)
    for facts in ({"x": number}, {"timings_ms": {"total": number}}):
        with pytest.raises(ValueError):
            store.finish(lease, result(**facts), 1.0)
    with pytest.raises(ValueError):
        store.note(invocation, {"hosts": {"a": {"memory_gb": number}}})
    assert [fault.status for fault in store.take_back("a", 2.0, 1, "it ended")] == ["lost"]
    again = store.lease("b", invocation, 3.0, LEASE_S, prefer_task=lease.task)
    assert (again.episode, again.attempt) == (lease.episode, 2)
    assert store.finish(again, result(), 4.0)
    with pytest.raises(ValueError):
        store.add_to_result(again, {"video_ms": number})
    assert [one.result for one in store.finished()] == [result()]
    assert store.invocations()[0]["notes"] == {}


def test_a_released_lease_costs_no_attempt(store):
    invocation = store.begin_invocation(0.0)
    lease = store.lease("a", invocation, 0.0, LEASE_S)
    assert store.release(lease)
    assert store.lease("a", invocation, 0.0, LEASE_S).attempt == 1
    assert not store.faults()


def test_a_failed_publish_leaves_the_episode_open(store):
    invocation = store.begin_invocation(0.0)
    lease = store.lease("a", invocation, 0.0, LEASE_S)

    def no_space():
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        store.finish(lease, result(), 1.0, no_space)
    assert store.finished() == []
    assert store.finish(lease, result(), 2.0)


def test_resume_takes_back_leases_and_keeps_finished_episodes(tmp_path):
    with make_store(tmp_path) as store:
        invocation = store.begin_invocation(0.0)
        store.finish(store.lease("a", invocation, 0.0, LEASE_S), result(False), 1.0)
        store.lease("a", invocation, 1.0, LEASE_S)
    with RunStore(tmp_path / "run.sqlite") as store:
        invocation = store.begin_invocation(2.0)
        assert total(store, "pending") == len(PLAN) - 1 and total(store, "done") == 1
        while lease := store.lease("b", invocation, 2.0, LEASE_S):
            assert store.finish(lease, result(), 3.0)
        assert [(f.task, f.episode) for f in store.finished()] == PLAN
        assert not store.finished()[0].success


def test_an_invocation_that_was_cut_off_ended_with_its_last_report(store):
    invocation = store.begin_invocation(0.0)
    store.finish(store.lease("a", invocation, 0.0, LEASE_S), result(), 5.0)
    store.lease("a", invocation, 5.0, LEASE_S)
    store.begin_invocation(3600.0)
    first, second = store.invocations()
    assert (first["ended"], first["outcome"]) == (5.0, None)
    assert second["ended"] is None


def test_only_the_worker_adds_to_a_finished_episode(store):
    invocation = store.begin_invocation(0.0)
    lease = store.lease("a", invocation, 0.0, LEASE_S)
    store.finish(lease, result(), 1.0)
    store.add_to_result(lease, {"video": "videos/0-0.mp4"})
    other = lease.__class__(**{**lease.__dict__, "token": "someone else's"})
    store.add_to_result(other, {"video": "wrong"})
    assert store.finished()[0].result["video"] == "videos/0-0.mp4"


def test_outcome_rank_follows_the_order_of_finishing(store):
    invocation = store.begin_invocation(0.0)
    leases = [store.lease("a", invocation, 0.0, LEASE_S, prefer_task=0) for _ in range(4)]
    for lease, success, at in zip(leases, (True, False, True, True), (3.0, 4.0, 1.0, 3.0), strict=True):
        store.finish(lease, result(success), at)
    assert [store.outcome_rank(lease) for lease in leases] == [1, 0, 0, 2]


def test_missing_video_is_claimed_by_one_worker(store):
    invocation = store.begin_invocation(0.0)
    leases = [store.lease("a", invocation, 0.0, LEASE_S, prefer_task=0) for _ in range(4)]
    for lease, success, at in zip(leases, (True, False, True, False), (4.0, 3.0, 1.0, 2.0), strict=True):
        store.finish(lease, result(success), at)
    store.add_to_result(leases[1], {"video": "v.mp4"})

    def first_of_each(success, place):
        return place == 0

    def missing_videos(invocation, wanted=lambda success, place: True):
        return [lease.episode for lease in store.missing_videos(invocation, wanted)]

    assert missing_videos(invocation) == [], "its own invocation draws them as they come"
    later = store.begin_invocation(5.0)
    assert missing_videos(later) == [0, 2, 3] and missing_videos(later, first_of_each) == [2, 3]
    assert store.claim_video(leases[2], later) and not store.claim_video(leases[2], later)
    assert missing_videos(later) == [0, 3], "whoever has it draws it, or nobody does in this invocation"
    assert missing_videos(store.begin_invocation(6.0)) == [0, 2, 3]
    store.add_to_result(leases[2], {"video": "v.mp4"})
    assert missing_videos(store.begin_invocation(7.0)) == [0, 3]
    assert [f.success for f in store.finished()] == [True, False, True, False]


WORKER = """
import sys, time
from pathlib import Path
from vla_evaluation.store.runstore import RunStore
store, name = RunStore(Path(sys.argv[1])), sys.argv[2]
while lease := store.lease(name, 1, time.time(), 30.0):
    store.heartbeat(lease, time.time(), 30.0)
    print(f"{lease.task} {lease.episode} {lease.token}", flush=True)
    if name == "killed" and lease.episode >= 5:
        time.sleep(60)
    assert store.finish(lease, {"success": True, "steps": 1}, time.time())
"""


def start(path: Path, name: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WORKER), str(path), name], stdout=subprocess.PIPE, text=True
    )


def test_processes_share_a_store_and_one_is_killed(tmp_path):
    plan = [(task, episode) for task in range(4) for episode in range(15)]
    with make_store(tmp_path, plan) as store:
        invocation = store.begin_invocation(0.0)
        victim = start(store.path, "killed")
        for line in victim.stdout:
            if int(line.split()[1]) >= 5:
                break
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        done_before = len(store.finished())
        assert done_before >= 5, "rows that were finished before the kill must survive it"
        [lost] = store.take_back("killed", 1.0, retries=2, reason="killed")
        workers = [start(store.path, f"w{i}") for i in range(3)]
        printed = [worker.communicate(timeout=60)[0] for worker in workers]
        assert all(worker.returncode == 0 for worker in workers)
        assert [(f.task, f.episode) for f in store.finished()] == plan
        assert sum(len(text.splitlines()) for text in printed) == len(plan) - done_before
        assert next(f for f in store.finished() if f.attempt == 2).episode == lost.episode
        assert store.faults(invocation) == [lost]


# --- the disk ---------------------------------------------------------------------------------------------


def test_full_disk_is_a_clear_error_and_nothing_is_lost(store):
    invocation = store.begin_invocation(0.0)
    store.finish(store.lease("a", invocation, 0.0, LEASE_S), result(), 1.0)
    pages = store.db.execute("PRAGMA page_count").fetchone()[0]
    store.db.execute(f"PRAGMA max_page_count = {pages}")  # SQLite then reports SQLITE_FULL as a full disk does
    lease = store.lease("a", invocation, 1.0, LEASE_S)
    with pytest.raises(StoreError, match="disk is full; free some space, then resume"):
        store.finish(lease, result(note="x" * 100_000), 2.0)
    store.db.execute("PRAGMA max_page_count = 1000000")
    assert len(store.finished()) == 1
    assert store.finish(lease, result(note="x" * 100_000), 2.0)


@pytest.mark.parametrize("damage", ["head", "middle", "truncated"])
def test_damaged_store_is_rejected_and_not_changed(tmp_path, damage):
    with make_store(tmp_path, plan=[(t, e) for t in range(10) for e in range(50)]) as store:
        store.begin_invocation(0.0)
        path = store.path
    data = bytearray(path.read_bytes())
    if damage == "head":
        data[:100] = b"garbage!" * 12 + b"----"
    elif damage == "middle":
        data[4096 : len(data) - 4096] = b"\xaa" * (len(data) - 8192)
    else:
        del data[len(data) // 2 :]
    path.write_bytes(data)
    with pytest.raises(StoreError, match="damaged and was not changed"):
        RunStore(path)
    assert path.read_bytes() == bytes(data)


def test_missing_store_reports_the_next_step(tmp_path):
    with pytest.raises(StoreError, match="./lab runs"):
        RunStore(tmp_path / "run.sqlite")


def test_other_schema_version_is_rejected(store):
    store.db.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="schema version 99"):
        RunStore(store.path)


def test_a_readonly_store_can_be_read_but_not_written(store):
    with RunStore(store.path, readonly=True) as reader:
        assert len(reader.plan()) == len(PLAN)
        with pytest.raises(StoreError, match="read-only"):
            reader.begin_invocation(0.0)


def test_a_store_is_never_half_created(tmp_path):
    with pytest.raises(StoreError):
        make_store(tmp_path, plan=[(0, 0), (0, 0)])
    assert os.listdir(tmp_path) == []
    make_store(tmp_path).close()
    with pytest.raises(StoreError, match="already exists"):
        make_store(tmp_path)
