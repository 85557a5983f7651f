"""`./lab learn` with every program real, on the benchmark whose robot mini-VLA was not made for."""

from __future__ import annotations

import json
import re

import pytest

pytestmark = pytest.mark.usefixtures("needs_course")
LEARN = (
    "learn", "metaworld_mt10", "--tasks", "drawer-close-v3", "--demonstrations", "1", "--minutes", "0.1", "--size",
    "tiny", "--trials", "1", "--workers", "1", "--name", "closing", "--runtime", "local", "--no-check",
)  # fmt: skip
STAGES = ("record", "dataset", "train", "evaluate")


def test_meta_world_is_recorded_learned_and_evaluated_and_nothing_is_done_twice(terminal):
    first = terminal.done(*LEARN, columns=200, OMP_NUM_THREADS="1").transcript
    assert re.search(r"metaworld_mt10: success rate [\d.]+ % \([01]/1\)", first), first
    run = terminal.volume / "runs" / "learn-closing"
    (row,) = map(json.loads, (run / "episodes.jsonl").read_text().splitlines())
    identity = json.loads((run / "config.json").read_text())
    policy = identity["policy"]
    assert (row["task"], row["episode"]) == (5, 0) and row["steps"] > 0
    assert identity["profile"] == "minivla" and policy["cameras"] == ["corner2"] and policy["horizon"] == 16
    assert [sum(part["size"] for part in policy[what]) for what in ("action", "state")] == [4, 4]
    assert policy["details"]["data"] == "closing" and policy["details"]["demonstrations"] == "1"
    again = terminal.done(*LEARN, columns=200).transcript
    assert [name for name in STAGES if f"{name}: finished" in again] == list(STAGES)
