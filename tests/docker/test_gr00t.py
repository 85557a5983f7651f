"""GR00T N1.5 across containers: what the oracle shows becomes a data set, is learned from, and the result evaluated."""

import json
import re

import pytest

from tests.docker.conftest import RUNTIME

pytestmark = pytest.mark.docker
FINETUNE = ("--max-steps", "10", "--batch-size", "4", "--learning-rate", "0.01", "--device", "cpu")
EVAL = ("--tasks", "7", "--trials", "1", "--max-steps", "4", "--video", "none", "--workers", "1", "--run-id", "tuned",
        "--policy-timeout-s", "600", "--act-timeout-s", "60")  # fmt: skip


def test_a_model_learns_from_the_oracles_demonstration_and_is_evaluated(lab, builds):
    builds.get("libero"), builds.get("gr00t")
    lab("record", "libero_goal", *RUNTIME, "--tasks", "7", "--episodes", "1", "--workers", "1", "--name", "shown")
    lab("dataset", "shown", "--format", "lerobot", *RUNTIME)
    lab("data", "gr00t", "--dataset", "shown", "--check", *RUNTIME)
    lab("checkpoint", "gr00t", "--tiny", *RUNTIME)
    learned = lab("finetune", "gr00t", "--dataset", "shown", *FINETUNE, *RUNTIME).text
    first, *_, last = map(float, re.findall(r"loss (\d+\.\d+)", learned))
    assert last < first, learned
    lab("up", "gr00t", "--checkpoint", "gr00t-shown", *RUNTIME)
    try:
        lab("eval", "libero_goal", "--policy", "gr00t", *EVAL, *RUNTIME)
    finally:
        lab("down", "gr00t")
    run = lab.volume / "runs" / "tuned"
    (episode,) = map(json.loads, (run / "episodes.jsonl").read_text().splitlines())
    assert episode["requests"] == 4
    assert json.loads((run / "config.json").read_text())["policy"]["checkpoint"]["repo"] == "finetuned-gr00t-shown"
