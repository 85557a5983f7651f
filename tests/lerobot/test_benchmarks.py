"""That the sides of `./lab bench lerobot_datasets` write and read with different classes."""

import numpy as np

from bench import lerobot_datasets as bench
from vla_datasets.lerobot import LeRobotDataset


def test_lerobot_datasets_are_written_and_read_by_each_sides_own_classes(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "LENGTH", 30)
    episodes, calls = list(bench.recorded(2, 64)), {"the lab": 0, "LeRobot": 0}

    def count(owner, name, side):
        original = getattr(owner, name)

        def counted(*arguments, **settings):
            calls[side] += 1
            return original(*arguments, **settings)

        monkeypatch.setattr(owner, name, counted)

    count(bench.V3Writer, "write", "the lab")
    count(bench.TheirDataset, "add_frame", "LeRobot")
    bench.write_lab(tmp_path / "lab", episodes, 64)
    assert calls == {"the lab": 2, "LeRobot": 0}
    bench.write_lerobot(tmp_path / "theirs", episodes, 64, **bench.LEROBOT["LeRobot, streamed H.264"])
    assert calls == {"the lab": 2, "LeRobot": 60}
    assert len(LeRobotDataset(tmp_path / "theirs")) == len(LeRobotDataset(tmp_path / "lab")) == 60
    count(bench.LeRobotDataset, "frames", "the lab")
    count(bench.TheirDataset, "__getitem__", "LeRobot")
    order = list(range(bench.ROUND))[::-1]
    last = [read(tmp_path / "lab", order)() for read in (bench.read_lab, bench.read_lerobot)]
    assert calls == {"the lab": 2 + bench.ROUND, "LeRobot": 60 + bench.ROUND}
    assert np.abs(last[0].astype(int) - last[1]).max() <= 3
