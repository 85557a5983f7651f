"""GR00T N1.5 with the tiny checkpoint, from a new robot's recordings to its offline scores, and evaluated on LIBERO.

The way of docs/gr00t.md's "A new robot", command by command; service, HTTP, training and simulator are the real ones.
"""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from vlalab.environments import venvs
from vlalab.host import paths

SHORT = "eval libero_goal --policy gr00t --tasks 0 --trials 1 --max-steps 16 --video none --workers 1"
FINETUNE = "finetune gr00t --dataset cups --max-steps 2 --batch-size 2 --save-steps 1 --device cpu"
SHARED = ("", "shared/common", "shared/contract", "shared/datasets")
MAKE = "import sys, pathlib; from tests.gr00t import robots; robots.make(pathlib.Path(sys.argv[1]), 2)"
ONE = {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def needs_gr00t() -> None:
    """Skips where the policy's environment, of 6.4 GB, is not made."""
    for name in ("gr00t", "libero"):
        if not venvs.get(name, paths.ROOT).is_ready():
            pytest.skip(f"environment {name!r} is not made: ./lab env {name}")


@pytest.fixture(scope="module")
def tiny(needs_gr00t, shared_terminal):
    """A volume with the tiny checkpoint."""
    shared_terminal.done("checkpoint", "gr00t", "--tiny", **ONE)
    return shared_terminal


@pytest.fixture(scope="module")
def trained(tiny):
    """The volume with a new robot's data set, checked, and what a broken-off training made of it in the end."""
    python, directory = venvs.get("gr00t", paths.ROOT).python, tiny.volume / "datasets/cups"
    variables = {**os.environ, "PYTHONPATH": ":".join(str(paths.ROOT / one) for one in SHARED)}
    subprocess.run([python, "-c", MAKE, directory], env=variables, cwd=paths.ROOT, check=True, timeout=120)
    checked = tiny.done("data", "gr00t", "--dataset", "cups", "--check", "--write-stats").transcript
    assert "\n1 note\n" in checked  # a robot that no shipped file describes
    tiny.done(*FINETUNE.split(" "), **ONE)
    whole = (tiny.volume / "checkpoints/gr00t-cups/model.safetensors").read_bytes()
    (tiny.volume / "runs/finetune/gr00t-cups/step_02.pt").unlink()  # as if it had been killed after its first step
    (tiny.volume / "checkpoints/gr00t-cups").rename(tiny.volume / "checkpoints/before")
    said = tiny.done(*FINETUNE.split(" "), "--resume", **ONE).transcript
    assert "from step_01.pt: 1 of 2 steps are done" in said
    assert (tiny.volume / "checkpoints/gr00t-cups/model.safetensors").read_bytes() == whole
    return tiny


def test_a_new_robots_fine_tuned_checkpoint_is_served_shown_a_moment_and_scored(trained):
    try:
        trained.done("up", "gr00t", "--checkpoint", "gr00t-cups", **ONE)
        shown = trained.done("act", "gr00t", "--dataset", "cups", "--index", "0", columns=120).transcript
        assert "pick up the cup" in shown and "arm" in shown and "gripper" in shown
        trained.done("offline", "gr00t", "--dataset", "cups", "--plot", "--episodes", "0", "--name", "cups")
    finally:
        trained("down", "gr00t").wait()
    directory = trained.volume / "logs/offline/cups"
    scored = json.loads((directory / "summary.json").read_text())
    assert "gr00t" in json.dumps(scored) and (directory / "report.html").is_file() and list(directory.glob("*.png"))


def test_the_tiny_checkpoint_is_evaluated_under_the_profile_that_it_names(tiny):
    said = tiny.done(*SHORT.split(" "), VLALAB_GR00T_CHECKPOINT="gr00t-tiny", **ONE).transcript
    assert "(0/1)" in said or "(1/1)" in said
    (directory,) = (path for path in (tiny.volume / "runs").iterdir() if path.name.startswith("libero_goal"))
    identity = json.loads((directory / "config.json").read_text())
    assert (identity["policy"]["name"], identity["profile"], identity["execute"]) == ("gr00t-n1.5", "groot-n1.5", 1)
    assert identity["cameras"] == ["agentview", "robot0_eye_in_hand"]
    report = (directory / "report.html").read_text()
    for name in ("embodiment_from", "action_normalization"):
        assert identity["policy"]["details"][name] and name in report
    (episode,) = map(json.loads, (directory / "episodes.jsonl").read_text().splitlines())
    assert episode["requests"] == episode["steps"] == 16 or episode["success"]
