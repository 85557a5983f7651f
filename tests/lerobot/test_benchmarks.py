"""That the sides of `./lab bench lerobot` and `./lab bench lerobot_datasets` do different things."""

import numpy as np
from lerobot.policies.act.modeling_act import ACTPolicy

from bench import lerobot as bench
from bench import lerobot_datasets as datasets
from services.lerobot.reference import Reference
from tests.calls import count_calls
from vla_datasets.lerobot import LeRobotDataset


def test_lerobot_datasets_are_written_and_read_by_each_sides_own_classes(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "LENGTH", 30)
    episodes, calls = list(datasets.recorded(2, 64)), {"the lab": 0, "LeRobot": 0}

    def count(owner, name, side):
        original = getattr(owner, name)

        def counted(*arguments, **settings):
            calls[side] += 1
            return original(*arguments, **settings)

        monkeypatch.setattr(owner, name, counted)

    count(datasets.V3Writer, "write", "the lab")
    count(datasets.TheirDataset, "add_frame", "LeRobot")
    datasets.write_lab(tmp_path / "lab", episodes, 64)
    assert calls == {"the lab": 2, "LeRobot": 0}
    datasets.write_lerobot(tmp_path / "theirs", episodes, 64, **datasets.LEROBOT["LeRobot, streamed H.264"])
    assert calls == {"the lab": 2, "LeRobot": 60}
    assert len(LeRobotDataset(tmp_path / "theirs")) == len(LeRobotDataset(tmp_path / "lab")) == 60
    count(datasets.LeRobotDataset, "frames", "the lab")
    count(datasets.TheirDataset, "__getitem__", "LeRobot")
    order = list(range(datasets.ROUND))[::-1]
    last = [read(tmp_path / "lab", order)() for read in (datasets.read_lab, datasets.read_lerobot)]
    assert calls == {"the lab": 2 + datasets.ROUND, "LeRobot": 60 + datasets.ROUND}
    assert np.abs(last[0].astype(int) - last[1]).max() <= 3


def test_lerobot_compares_chunks_with_single_actions_and_counts_what_differs(checkpoints, tmp_path, monkeypatch):
    policy = bench.load(checkpoints("act"))
    reference = Reference(checkpoints("act"), policy.cameras, tmp_path / "reference")
    selected = count_calls(monkeypatch, ACTPolicy, "select_action")
    assert bench.count_differences(policy, {"first": reference}, (9,)) == 0
    assert len(selected) == 9  # the service asks for chunks
    other = Reference(checkpoints("act", seed=1), policy.cameras, tmp_path / "other")
    assert bench.count_differences(policy, {"first": other}, (9,)) == 9
