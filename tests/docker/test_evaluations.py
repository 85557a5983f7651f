"""Evaluations in which every part is a container: two episodes, a policy killed in mid-run, the oracle."""

import contextlib
import json
import sqlite3

import pytest

from tests.docker.conftest import RUNTIME
from tests.docker.lab import Lab, wait_until
from tests.ports import free_ports
from vlalab.engine import docker

pytestmark = pytest.mark.docker
# Short episodes of one task, nothing drawn: what is tested here is the way from container to container.
SHORT = ("--tasks", "0", "--workers", "1", "--video", "none", "--policy-timeout-s", "600", "--act-timeout-s", "60")
ONE_DONE = "SELECT 1 FROM episodes WHERE status = 'done'"  # it stays so, and the others are to come


def summary(lab: Lab, run_id: str) -> dict:
    return json.loads((lab.volume / "runs" / run_id / "summary.json").read_text())


def episodes(lab: Lab, run_id: str) -> list[dict]:
    lines = (lab.volume / "runs" / run_id / "episodes.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_two_episodes_across_containers(up):
    done = up("eval", "libero_goal", *RUNTIME, "--policy", "openvla", "--trials", "2", "--max-steps", "6",
              "--run-id", "two", *SHORT)  # fmt: skip
    assert "runtime docker" in done.text and "2 of 2" in done.text
    assert (summary(up, "two")["complete"], summary(up, "two")["episodes"]) == (True, 2)
    assert [(row["episode"], row["attempt"]) for row in episodes(up, "two")] == [(0, 1), (1, 1)]
    assert all(row["requests"] == 6 and row["timings_ms"]["server_infer"] > 0 for row in episodes(up, "two"))
    assert sorted(up.ids()) == sorted(up.ids("openvla") + up.ids("ui")), "the evaluator's container is gone"


def peek(lab: Lab, run_id: str, question: str) -> list[tuple]:
    """Returns rows of a run's store while the evaluator writes to it; none before it exists."""
    path = lab.volume / "runs" / run_id / "run.sqlite"
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
            return store.execute(question).fetchall()
    except sqlite3.Error:
        return []


def test_a_policy_killed_in_mid_run_and_started_again_costs_no_episode(up):
    words = ["eval", "libero_goal", *RUNTIME, "--policy", "openvla", "--trials", "3", "--max-steps", "80",
             "--run-id", "killed", *SHORT]  # fmt: skip
    with up.started(*words) as run:
        wait_until(lambda: peek(up, "killed", ONE_DONE), "an episode", 600, run)
        docker.run(["kill", "--signal", "KILL", up.container("openvla")["Id"]])
        noticed = "SELECT 1 FROM episodes WHERE status = 'error'"
        wait_until(lambda: peek(up, "killed", noticed), "the evaluator's notice", 300, run)
        up("restart", "openvla")  # with the settings it had
        output, _ = run.communicate(timeout=900)
    assert run.returncode == 0, output
    rows = episodes(up, "killed")
    assert sorted(row["episode"] for row in rows) == [0, 1, 2] and summary(up, "killed")["complete"]
    assert sorted(row["attempt"] for row in rows) == [1, 1, 2], "the one that was under way was done again"
    statuses = dict(peek(up, "killed", "SELECT status, COUNT(*) FROM episodes GROUP BY status"))
    assert statuses == {"done": 3, "error": 1}, "an infrastructure error is kept apart from what the policy failed at"


def test_a_service_that_crashes_comes_back_by_itself(up):
    before = up.container("openvla")
    kill_it = "import os, signal; os.kill(min(int(p) for p in os.listdir('/proc') if p.isdigit() and p != '1'), 9)"
    docker.run(["exec", before["Id"], "python", "-c", kill_it], check=False)
    again = before["RestartCount"] + 1
    wait_until(lambda: up.container("openvla")["RestartCount"] == again, "the engine's restart", 180)
    wait_until(lambda: up.container("openvla")["State"]["Health"]["Status"] == "healthy", "health", 600)
    assert up.container("openvla")["Id"] == before["Id"]


def test_the_oracle_in_a_container_solves_an_episode(up):
    done = up("eval", "libero_goal", *RUNTIME, "--policy", "oracle", "--tasks", "7", "--trials", "1", "--workers", "1",
              "--run-id", "oracle")  # fmt: skip
    assert summary(up, "oracle")["successes"] == 1, done.text
    assert (up.volume / "runs" / "oracle" / "report.html").stat().st_size > 10_000
    assert list((up.volume / "runs" / "oracle" / "videos").rglob("*.mp4"))
    assert up.ids("oracle") == [], "a policy that was started for an evaluation ends with it"


def test_a_container_joins_the_run_of_an_evaluator_in_a_container(lab, builds):
    """Both, and the policy that was started for it, meet at an address of this machine that is not its own alone."""
    builds.get("libero")
    (bridge,) = docker.json_lines(["network", "inspect", "bridge"])
    address = f"{bridge['IPAM']['Config'][0]['Gateway']}:{free_ports(1)[0]}"
    rest = ["--tasks", "0", "--trials", "3", "--max-steps", "12", "--video", "none"]
    lab("eval", "libero_goal", *RUNTIME, "--policy", "oracle", *rest, "--workers", "1", "--run-id", "alone")
    words = ["eval", "libero_goal", *RUNTIME, "--policy", "oracle", *rest, "--listen", address, "--workers", "0"]
    refused = lab(*words, "--run-id", "joined", check=False)
    assert refused.code == 1 and "set VLALAB_TOKEN" in refused.text
    with lab.started(*words, "--run-id", "joined", VLALAB_TOKEN="for-these-tests") as run:
        wait_until(lambda: peek(lab, "joined", "SELECT 1 FROM episodes"), "the run", 300, run)
        lab("eval", "--join", f"http://{address}", "--workers", "1", VLALAB_TOKEN="for-these-tests")
        output, _ = run.communicate(timeout=300)
    assert run.returncode == 0 and f"./lab eval --join http://{address}" in output, output
    keys = ("task", "episode", "success", "steps", "start_hash", "end_hash", "actions_hash")
    did = [[[row[key] for key in keys] for row in episodes(lab, name)] for name in ("alone", "joined")]
    assert did[0] == did[1] and len(did[0]) == 3
    assert {row["host"] for row in episodes(lab, "joined")} != {row["host"] for row in episodes(lab, "alone")}


def test_restart_keeps_the_settings(up):
    before = up.container("openvla")
    up("restart", "openvla")
    after = up.container("openvla")
    assert after["State"]["StartedAt"] > before["State"]["StartedAt"]
    assert after["State"]["Health"]["Status"] == "healthy"
    (setting,) = [line for line in after["Config"]["Env"] if line.startswith("VLALAB_OPENVLA_CHECKPOINT=")]
    assert setting in before["Config"]["Env"] and "openvla-tiny" in setting
