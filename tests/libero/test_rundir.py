"""Run directories and who may work on them: pairs of real processes that want the same run at the same moment."""

import json
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from tests.libero.harness import ENVIRONMENT, ROOT
from vla_evaluation.runs import directories as rundir
from vla_evaluation.store.runstore import RunStore

PLAN = [(0, 0), (0, 1), (1, 0)]
IDENTITY = {"suite": "libero_goal", "tasks": [0, 1], "episodes": "0-1"}
ROUNDS = 30

# Opens the run that each line names at the moment it names, works through it, and says how it went.
EVALUATOR = """
import json, sys, time
from pathlib import Path
from vla_evaluation.runs import directories as rundir
from vla_evaluation.store.records import StoreError

print("ready", flush=True)
for line in sys.stdin:
    order = json.loads(line)
    time.sleep(max(0.0, order["at"] - time.time()))
    said = {"done": 0}
    try:
        with rundir.open_run(
            Path(order["root"]), order["identity"], [tuple(unit) for unit in order["plan"]],
            run_id=order["run_id"], resume=None, label="x",
        ) as run:
            said["run"] = run.id
            session = run.store.begin_invocation(time.time())
            while lease := run.store.lease("w", session, time.time(), 30.0):
                said["done"] += run.store.finish(lease, {"success": True, "steps": 1}, time.time())
    except (rundir.RunUnusable, StoreError) as error:
        said["refused"] = str(error)
    print(json.dumps(said), flush=True)
"""


@contextmanager
def evaluators(number=2):
    command = [sys.executable, "-c", EVALUATOR]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, **pipes) for _ in range(number)]
    try:
        assert all(process.stdout.readline() == "ready\n" for process in processes)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def together(processes, root, run_id, plan=PLAN) -> list[dict]:
    """Return what each process says of a run that all are told to open in the same moment."""
    order = {"at": time.time() + 0.02, "root": str(root), "run_id": run_id, "identity": IDENTITY, "plan": plan}
    for process in processes:
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
    return [json.loads(process.stdout.readline()) for process in processes]


def finished(directory) -> list[tuple[int, int]]:
    with RunStore(directory / "run.sqlite") as store:
        assert store.open() is False
        return [(f.task, f.episode) for f in store.finished()]


def test_two_evaluators_of_one_id_run_every_episode_once(tmp_path):
    refusals = []
    with evaluators() as pair:
        for number in range(ROUNDS):
            said = together(pair, tmp_path, f"run-{number}")
            assert sum(one["done"] for one in said) == len(PLAN), said
            assert finished(tmp_path / f"run-{number}") == PLAN
            refusals += [one["refused"] for one in said if "refused" in one]
    for text in refusals:
        assert "is already running 'run-" in text and "choose another name" in text
        assert "process " in text and "(started " in text
    assert not list(tmp_path.glob("*/.run.sqlite*")), "a draft was left behind"


def test_generated_ids_are_unique(tmp_path):
    with evaluators(4) as four:
        for _ in range(ROUNDS // 3):
            said = together(four, tmp_path, None)
            assert [one["done"] for one in said] == [len(PLAN)] * 4, said
            assert len({one["run"] for one in said}) == 4
    assert len(rundir.find_runs(tmp_path)) == 4 * (ROUNDS // 3)


def test_locked_run_is_rejected_before_any_change(tmp_path):
    (tmp_path / "run").mkdir()
    with (
        rundir.lock(tmp_path / "run"),
        pytest.raises(rundir.RunUnusable, match=r"process \d+ \(started 20.*\) is already running 'run'; wait"),
        rundir.open_run(tmp_path, IDENTITY, PLAN, run_id="run", resume=None, label="x"),
    ):
        pass
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.lock"]
