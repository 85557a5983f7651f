"""The last images across containers: what the oracle shows is learned from, served, and evaluated."""

import json
import re

import pytest

from tests.docker.builds import GROUPS
from tests.docker.conftest import RUNTIME
from tests.docker.watching import require_own_names, services_of

pytestmark = pytest.mark.docker
FINETUNE = ("--max-steps", "10", "--batch-size", "4", "--learning-rate", "0.01", "--device", "cpu")
EVAL = ("--tasks", "7", "--trials", "1", "--max-steps", "4", "--video", "none", "--workers", "1", "--run-id", "tuned",
        "--policy-timeout-s", "600", "--act-timeout-s", "60")  # fmt: skip


@pytest.fixture(scope="module")
def learned(lab, builds) -> str:
    """The output of a fine-tuning on one episode of the oracle, which is the data set `shown` on the volume."""
    for name in ("libero", "gr00t", "ws_mdl", "hf"):
        builds.get(name)
    lab("record", "libero_goal", *RUNTIME, "--tasks", "7", "--episodes", "1", "--workers", "1", "--name", "shown")
    lab("dataset", "shown", "--format", "lerobot", *RUNTIME)
    lab("data", "gr00t", "--dataset", "shown", "--check", *RUNTIME)
    lab("checkpoint", "gr00t", "--tiny", *RUNTIME)
    return lab("finetune", "gr00t", "--dataset", "shown", *FINETUNE, *RUNTIME).text


def test_a_model_learns_from_the_oracles_demonstration_and_is_evaluated(lab, learned):
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


def test_the_services_of_these_images_answer_to_their_own_names_only(lab, learned):
    lab("train", "minivla", "--data", "shown", "--size", "tiny", "--set", "epochs=1", *RUNTIME)
    names = services_of(GROUPS[1])
    try:
        lab("up", *names, "--checkpoint", "gr00t-shown", *RUNTIME)
        require_own_names(lab, names)
    finally:
        lab("down", *names)
