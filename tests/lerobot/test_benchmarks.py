"""That the sides of `./lab bench lerobot`, `lerobot_datasets` and `lerobot_eval` do different things."""

import contextlib
import sys

import numpy as np
import pytest
import torch
from lerobot.policies.act.modeling_act import ACTPolicy

from bench import lerobot as bench
from bench import lerobot_datasets as datasets
from bench import lerobot_eval as evaluation
from bench.parts import lerobot_eval_logged
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


@pytest.fixture
def setting(tmp_path):
    """Return a setting whose environment has an empty package of LIBERO."""
    (tmp_path / "env" / "lib" / "python3.12" / "site-packages" / "libero" / "libero").mkdir(parents=True)
    return evaluation.Setting(tmp_path / "env" / "bin" / "python", tmp_path / "assets", tmp_path / "act", 2, 3)


def test_lerobot_eval_runs_lerobots_program_on_one_side_and_the_labs_evaluator_on_the_other(
    setting, tmp_path, monkeypatch
):
    commands = []
    monkeypatch.setattr(evaluation, "run", lambda command, env: commands.append(command))
    monkeypatch.setattr(evaluation, "program", lambda *_, **__: contextlib.nullcontext("http://127.0.0.1:1"))
    with pytest.raises(FileNotFoundError):  # no rollout was logged
        evaluation.run_lerobot(setting, tmp_path, "--eval.batch_size=2")
    with pytest.raises(Exception, match="run.sqlite"):
        evaluation.run_lab(setting, tmp_path)
    theirs, ours = commands
    assert theirs[:2] == [str(setting.python), lerobot_eval_logged.__file__]
    assert {f"--policy.path={setting.checkpoint}", "--eval.n_episodes=2", "--eval.batch_size=2"} <= set(theirs)
    assert "--env.episode_length=3" in theirs
    assert ours[:4] == [str(evaluation.LIBERO), "-m", "services.libero", "libero_object"]
    assert ours[-2:] == ["--max-steps", "3"]


def test_lerobot_eval_reads_every_episode_of_lerobots_rollouts(setting, tmp_path, monkeypatch):
    actions = torch.arange(2 * 3 * 7, dtype=torch.float32).reshape(2, 3, 7)
    success = torch.tensor([[False, True, True], [False, False, False]])
    done = torch.tensor([[False, True, True], [False, False, True]])
    program = lerobot_eval_logged.lerobot_eval
    monkeypatch.setattr(program, "rollout", lambda: {"action": actions, "success": success, "done": done})
    monkeypatch.setattr(program, "main", lambda: [program.rollout() for _ in range(2)])

    def run(command: list[str], env: dict[str, str]) -> None:
        monkeypatch.setattr(sys, "argv", command[1:])
        lerobot_eval_logged.main()

    monkeypatch.setattr(evaluation, "run", run)
    episodes = evaluation.run_lerobot(setting, tmp_path)
    assert [(e.worker, e.success, len(e.actions)) for e in episodes] == [("0", True, 2), ("1", False, 3)] * 2
    assert np.array_equal(episodes[0].actions, actions[0, :2])
    assert evaluation.count_equal("side", episodes, [episodes[0], episodes[0], *episodes[2:]]) == 3
