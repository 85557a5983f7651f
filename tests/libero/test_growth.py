"""When a run gets one more worker, and that it does."""

import json
import os

import pytest

from tests.libero import light
from tests.libero.harness import PolicyService
from tests.libero.invented import episode_result, make_run
from vla_evaluation import cli, provenance
from vla_evaluation.store.runstore import RunStore
from vla_evaluation.workers import supervisor
from vla_evaluation.workers.supervisor import Growth

SLOW = {"total": 1000.0, "policy": 600.0, "server_queue": 20.0, "server_infer": 550.0}


@pytest.fixture
def look(tmp_path, monkeypatch):
    """Return what is said of a run with these timings on a machine of two cores."""

    def say(timings=SLOW, load=1.0, memory_gb=8.0, workers=2, left=3, look_s=0.0):
        monkeypatch.setattr(supervisor, "GROWTH_INTERVAL_S", look_s)
        monkeypatch.setattr(provenance, "cores", lambda: 2)
        monkeypatch.setattr(provenance, "free_memory_gb", lambda: memory_gb)
        monkeypatch.setattr(os, "getloadavg", lambda: (load, 9.0, 9.0))
        _, store = make_run(tmp_path, trials=4, task_count=1, left=left)
        with store:
            result = json.dumps(episode_result(True, timings_ms=timings))
            store.db.execute("UPDATE episodes SET result = ? WHERE status = 'done'", (result,))
            return Growth(2.0).reason(store, 1, workers)

    return say


def test_worker_is_added_when_a_core_is_idle(look):
    assert look() == "workers wait for the policy 60% of their time, and cores are idle: using 3 workers"


@pytest.mark.parametrize(
    "otherwise",
    [
        {"load": 1.7},  # and 0.4 of a core more
        {"memory_gb": 3.9},
        {"workers": 8},
        {"left": 0},
        {"left": 4},  # nothing is finished that would tell
        {"timings": {**SLOW, "server_queue": 560.0}},  # the policy has more questions than it answers
        {"timings": {**SLOW, "policy": 10.0}, "load": 1.1},
        {"look_s": 60.0},
    ],
    ids=str,
)
def test_no_worker_is_added_otherwise(look, otherwise):
    assert look(**otherwise) == ""


def test_slow_policy_run_adds_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "GROWTH_INTERVAL_S", 0.0)
    monkeypatch.setattr(supervisor, "MAX_PER_CORE", 2)
    monkeypatch.setattr(provenance, "cores", lambda: 1)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    words = ["libero_goal", "--run-dir", str(tmp_path), "--run-id", "grown"]
    words += ["--tasks", "0", "--trials", "6", "--max-steps", "8", "--video", "none"]
    with PolicyService(tmp_path / "policy.txt", "--chunk", "1", "--delay-ms", "100") as policy:
        assert cli.main(light.BENCHMARK, [*words, "--policy-url", policy.url]) == 0
    with RunStore(tmp_path / "grown" / "run.sqlite", readonly=True) as store:
        assert len(list(store.finished())) == 6
        assert [invocation["notes"]["workers"] for invocation in store.invocations()] == [2]
        assert {path.stem for path in (tmp_path / "grown" / "logs").iterdir()} >= {"worker-0", "worker-1"}
