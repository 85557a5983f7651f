"""`./lab reproduce`, from the measured pace to the verdict: a stand-in policy whose rate follows from its speed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time

import pytest

from tests.terminal.test_one_folder import Lab

# Longer side of the way from each start to its goal, m: default_rng(task).uniform(0, 1, (4, 2)) of the toy benchmark.
DISTANCES = 0.437, 0.183, 0.713, 0.529, 0.288, 0.656, 0.488, 0.291
REACHED = 0.06 * 6.0  # m, by the slow seeker in 60 steps at 10 Hz


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Lab:
    return Lab(tmp_path_factory.mktemp("reproduce"))


def result(lab: Lab, run: str) -> dict:
    return json.loads((lab.volume / "runs" / run / "reproduction.json").read_text())


def test_a_rate_like_the_published_one_is_compatible(lab):
    said = lab("reproduce", "seeker", "reach")
    assert "published: 90 %, 20 episodes per task, Seeker, made up" in said
    assert re.search(r"this will take about \d.*: 8 episodes at the pace of \d+ steps, measured on this machine", said)
    assert "ours:      100.0 % (8/8), 95 % 67.6–100.0 %" in said
    assert "published: 90 % of 40 episodes, 95 % 76.9–96.0 %" in said
    assert said.splitlines()[-1].startswith("verdict:   compatible (") and "p = 1)" in said
    verdict = result(lab, "reach-seeker-reproduce-4")
    assert verdict["compatible"] and verdict["published_episodes"] == 40
    assert not (lab.volume / "runs" / "reach-seeker-reproduce-4-pace").exists()


def test_the_same_command_continues_a_stopped_run_and_a_lower_rate_is_not_compatible(lab):
    run = lab.volume / "runs" / "reach-slow-seeker-reproduce-4"
    command = [lab.tree / "lab", "reproduce", "slow-seeker", "reach"]
    with subprocess.Popen(
        command, env=lab.variables, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as lab_process:
        while not (run / "run.sqlite").exists():
            assert lab_process.poll() is None
            time.sleep(0.02)
        lab_process.send_signal(signal.SIGINT)
        said = "".join(lab_process.communicate())
    assert lab_process.returncode == 130 and "verdict" not in said, said
    said = lab("reproduce", "slow-seeker", "reach")
    assert "(resumed)" in said and "this will take" not in said
    solved = sum(distance < REACHED for distance in DISTANCES)
    assert f"({solved}/8)" in said and 0 < solved < 8
    assert "differs:   published: at full speed" in said and "not compatible (" in said
    verdict = result(lab, "reach-slow-seeker-reproduce-4")
    assert (verdict["successes"], verdict["compatible"]) == (solved, False)
    assert verdict["differences"][-1] == "published: at full speed"


def test_fewer_trials_are_a_difference(lab):
    said = lab("reproduce", "seeker", "reach", "--trials", "2")
    assert "differs:   not the first 4 init states" in said and "(4/4)" in said


def test_what_is_not_known_is_listed(lab):
    assert "did you mean 'seeker'? Known: " in lab("reproduce", "seekr", "reach", code=1)
    assert "Known: reach" in lab("reproduce", "seeker", "libero_goal", code=1)
    assert "--url" in lab("reproduce", "elsewhere", "reach", code=1)
