"""How long a run will take is said before it begins, from earlier runs of this machine, and never invented."""

import json
from copy import deepcopy

import pytest

from services.libero.benchmark import BENCHMARK
from tests.libero.invented import ASSETS, IDENTITY, make_run
from vla_contract import PolicyInfo
from vla_contract.protocol.parts import OSC_POSE
from vla_evaluation import estimate, evaluate, provenance
from vla_evaluation.config import EvalConfig
from vla_evaluation.plan import make_plan
from vla_evaluation.runs.directories import Run


def earlier_run(root, name="before", seconds=150.0, machine=None, **changes):
    """Write a run of 20 episodes that two workers of this machine, unless told otherwise, did in so many seconds."""
    _, store = make_run(root, name, trials=2, **changes)
    with store:
        invocation = store.invocations()[0]
        notes = {**invocation["notes"], "machine": machine or provenance.machine()}
        store.db.execute("UPDATE sessions SET ended = started + ?, notes = json(?)", (seconds, json.dumps(notes)))


def told(root, capsys, episodes=500, workers=1):
    """Return what is printed before a new run of so many episodes begins."""
    directory, store = make_run(root, "new", trials=50, left=500)
    plan = make_plan(BENCHMARK, EvalConfig(suite="libero_goal"))
    info = PolicyInfo(name="vla", action=OSC_POSE)
    with store:
        evaluate.print_header(Run(directory, store, False, []), plan, info, ASSETS["kit"], episodes, workers)
    return capsys.readouterr().out


def test_long_run_is_announced_from_an_earlier_runs_pace(tmp_path, capsys):
    earlier_run(tmp_path)
    line = "this will take about 2 h 05 min, at the pace of before on this machine (15.0 s per episode and worker)"
    assert line in told(tmp_path, capsys).splitlines()


@pytest.mark.parametrize(("episodes", "workers"), [(80, 2), (0, 1)])
def test_short_or_finished_runs_are_not_announced(tmp_path, capsys, episodes, workers):
    earlier_run(tmp_path)
    assert "this will take" not in told(tmp_path, capsys, episodes, workers)


@pytest.mark.parametrize(
    "changes",
    [
        {"suite": "libero_10"},
        {"policy": {**IDENTITY["policy"], "name": "another"}},
        {"policy": {**IDENTITY["policy"], "checkpoint": {"repo": "lab/vla", "revision": "older"}}},
        {"render": "cpu"},
        {"max_steps": 8},
        {"machine": {"cores": 999}},
    ],
    ids=str,
)
def test_dissimilar_runs_give_no_estimate(tmp_path, capsys, changes):
    earlier_run(tmp_path, **deepcopy(changes))
    assert "this will take" not in told(tmp_path, capsys)


def test_no_runs_or_damaged_runs_give_no_estimate(tmp_path, capsys):
    assert estimate.announcement(tmp_path, IDENTITY, 500, 1) is None
    earlier_run(tmp_path)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.sqlite").write_bytes(b"nothing like a database" * 100)
    assert "about 2 h 05 min" in told(tmp_path, capsys)


def test_three_episodes_give_no_pace(tmp_path, capsys):
    make_run(tmp_path, "few", trials=1, task_count=3)
    assert estimate.announcement(tmp_path, IDENTITY, 500, 1) is None
