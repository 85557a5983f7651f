"""`./lab eval` of GR00T N1.5 with the tiny checkpoint: service, HTTP and simulator are the real ones."""

from __future__ import annotations

import json

import pytest

from vlalab.environments import venvs
from vlalab.host import paths

SHORT = "eval libero_goal --policy gr00t --tasks 0 --trials 1 --max-steps 16 --video none --workers 1"


@pytest.fixture(scope="module")
def needs_gr00t() -> None:
    """Skips where the policy's environment, of 6.4 GB, is not made."""
    for name in ("gr00t", "libero"):
        if not venvs.named(name, paths.ROOT).is_ready():
            pytest.skip(f"environment {name!r} is not made: ./lab env {name}")


def test_the_tiny_checkpoint_is_evaluated_under_the_profile_that_it_names(needs_gr00t, terminal):
    terminal.done("checkpoint", "gr00t", "--tiny")
    said = terminal.done(*SHORT.split(" "), VLALAB_GR00T_CHECKPOINT="gr00t-tiny").transcript
    assert "(0/1)" in said or "(1/1)" in said
    (folder,) = (terminal.volume / "runs").iterdir()
    identity = json.loads((folder / "config.json").read_text())
    assert (identity["policy"]["name"], identity["profile"], identity["execute"]) == ("gr00t-n1.5", "groot-n1.5", 1)
    assert identity["cameras"] == ["agentview", "robot0_eye_in_hand"]
    (episode,) = map(json.loads, (folder / "episodes.jsonl").read_text().splitlines())
    assert episode["requests"] == episode["steps"] == 16 or episode["success"]
