"""Training with LeRobot's own trainer: it resumes, and its result serves."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from safetensors.torch import load_file, save_file

from services.lerobot.policy import load_policy
from services.lerobot.reference import random_observation
from services.lerobot.settings import ModelSettings
from services.lerobot.training import __main__ as program
from services.lerobot.training.__main__ import train
from services.lerobot.training.settings import LeRobotFinetune, pairs
from tests.calls import count_calls
from vla_common.volume import Volume
from vla_contract.protocol.parts import GRIPPER_OPENS, OSC_POSE

SMALL = "chunk_size=4,n_action_steps=4,dim_model=32,n_heads=2,dim_feedforward=32,n_vae_encoder_layers=1"
SIDE = 64


class StopAfter:
    """A stop signal that is set from its n-th reading on."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    @property
    def requested(self) -> bool:
        self.left -= 1
        return self.left < 0


NEVER = SimpleNamespace(requested=False)


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    """A volume with a data set of two episodes, written by LeRobot."""
    root = tmp_path_factory.mktemp("volume")
    image = {"dtype": "video", "shape": (SIDE, SIDE, 3), "names": ["height", "width", "channel"]}
    features = {"observation.images.image": image, "observation.images.wrist_image": image}
    features |= {name: {"dtype": "float32", "shape": (size,), "names": None}
                 for name, size in (("observation.state", 8), ("action", 7))}  # fmt: skip
    dataset = LeRobotDataset.create("cups", 10, features, root=root / "datasets" / "cups", use_videos=True)
    rng = np.random.default_rng(0)
    for _ in range(2):
        for _ in range(12):
            images = {name: rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8) for name in features if "images" in name}
            numbers = {"observation.state": rng.normal(size=8), "action": np.clip(rng.normal(size=7), -1, 1)}
            dataset.add_frame({**images, **{name: value.astype(np.float32) for name, value in numbers.items()},
                               "task": "pick up the cup"})  # fmt: skip
        dataset.save_episode()
    dataset.finalize()
    return Volume(root)


@pytest.fixture
def settings(monkeypatch):
    """Return a function: name of the result, changes → settings of a small ACT run of six steps."""
    monkeypatch.setattr(sys, "argv", sys.argv)

    def make(name: str, **changes) -> LeRobotFinetune:
        return LeRobotFinetune(
            **{"dataset": "cups", "name": name, "max_steps": 6, "batch_size": 2, "set": SMALL, "device": "cpu",
               "save_steps": 100, **changes}
        )  # fmt: skip

    return make


def test_an_interrupted_run_resumes_and_serves(volume, settings, capfd):
    assert not train(settings("cut"), volume, StopAfter(2))
    states = sorted(path.name for path in (volume.path("runs") / "finetune/cut/checkpoints").glob("0*"))
    assert states == ["000004"], "a stop in step 3 saves after step 4"
    assert "run the same command to resume" in capfd.readouterr().out
    assert train(settings("cut"), volume, NEVER)
    assert "resuming: 4 of 6 steps are done" in capfd.readouterr().out
    cut = volume.path("checkpoints") / "cut"
    optimizer = load_file(
        volume.path("runs") / "finetune/cut/checkpoints/000006/training_state/optimizer_state.safetensors"
    )
    assert {float(value) for name, value in optimizer.items() if name.endswith("step")} == {6.0}
    assert list((volume.path("logs") / "tensorboard/finetune/cut").glob("events*"))

    policy = load_policy(ModelSettings(checkpoint=str(cut), device="cpu"))
    assert policy.info().cameras == ("agentview", "robot0_eye_in_hand")
    record = json.loads((cut / "checkpoint.json").read_text())
    assert record["finetuned"]["dataset"] == "cups" and record["finetuned"]["type"] == "act"

    # a run that starts from a checkpoint, and another command for the same name
    assert train(settings("further", base="cut", set="", max_steps=1), volume, NEVER)
    config = json.loads((volume.path("checkpoints") / "further/config.json").read_text())
    assert config["type"] == "act" and config["chunk_size"] == 4
    with pytest.raises(ValueError, match="other settings.*seed.*--name"):
        train(settings("cut", seed=7), volume, NEVER)


@pytest.mark.parametrize("mode", ["MEAN_STD", "MIN_MAX"])
def test_the_gripper_of_the_labs_sets_becomes_that_of_lerobots_libero(volume, settings, mode):
    """The lab's sets store 0 closed, 1 open; LeRobot's LIBERO executes -1 open, 1 closed."""
    source, name = volume.datasets / "cups/meta/source.json", f"inverted-{mode}"
    modes = f"{SMALL},normalization_mapping={{VISUAL: MEAN_STD, STATE: MEAN_STD, ACTION: {mode}}}"
    source.write_text(json.dumps({"action": [asdict(part) for part in (*OSC_POSE, GRIPPER_OPENS)]}))
    try:
        train(settings(name, max_steps=1, set=modes), volume, NEVER)
    finally:
        source.unlink()
    state = volume.path("runs") / "finetune" / name / "checkpoints/000001/pretrained_model"
    directories = (state, volume.path("checkpoints") / name)
    plain, inverted = (load_policy(ModelSettings(checkpoint=str(path), device="cpu")) for path in directories)
    observation = random_observation(plain.info(), "session", 0)
    opens, closes = (policy.act([observation])[0].actions for policy in (plain, inverted))
    np.testing.assert_allclose(closes[:, :6], opens[:, :6], atol=1e-6)
    np.testing.assert_allclose(closes[:, 6], 1 - 2 * opens[:, 6], atol=1e-6)
    assert np.ptp(opens[:, 6]) > 0
    normalized = [
        policy.loaded.preprocessor({**policy.batch([observation]), "action": torch.from_numpy(actions)})["action"]
        for policy, actions in ((plain, opens), (inverted, closes))
    ]
    torch.testing.assert_close(*normalized, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type": "atc"}, "'atc'.*'act'"),
        ({"set": "chunk_sizes=4"}, "chunk_sizes.*chunk_size"),
        ({"set": "chunk_size=many"}, "chunk_size"),
        ({"base": "none"}, "'none' not found"),
        ({"resume": True}, "no training state"),
        ({"type": "smolvla"}, "start from a checkpoint: --base"),
    ],
)
def test_a_wrong_setting_is_one_sentence_and_leaves_nothing(volume, settings, changes, message):
    with pytest.raises(ValueError, match=message):
        train(settings("wrong", **changes), volume, NEVER)
    assert not (volume.path("checkpoints") / "wrong").exists()


def test_several_processes_are_refused(volume, settings, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="one GPU.*--gpus"):
        train(settings("wrong"), volume, NEVER)


def test_values_with_commas():
    assert pairs("--set", "down_dims=[32,64],horizon=16") == {"down_dims": "[32,64]", "horizon": "16"}
    assert pairs("--set", "modes={a: b, c: d},horizon=16") == {"modes": "{a: b, c: d}", "horizon": "16"}
    with pytest.raises(ValueError, match="--set 'horizon'"):
        pairs("--set", "horizon")


def test_adapters_of_a_base_are_merged_and_its_repositories_kept(volume, settings, checkpoints, monkeypatch):
    base = volume.path("checkpoints") / "base"
    shutil.copytree(checkpoints("smolvla"), base)
    for path in base.glob("policy_*normalizer_processor.safetensors"):  # as in published bases, which serve no robot
        save_file({f"so100.buffer.{name}": tensor for name, tensor in load_file(path).items()}, path)
    checks = count_calls(monkeypatch, program, "check_files")
    assert train(
        settings("adapted", base="base", set="", max_steps=1, lora_rank=4, rename="wrist_image=image2"), volume, NEVER
    )
    assert len(checks) == 1
    result = volume.path("checkpoints") / "adapted"
    before, after = (load_file(path / "model.safetensors") for path in (base, result))
    assert before.keys() == after.keys()
    changed = [name for name in before if not before[name].equal(after[name])]
    assert 0 < len(changed) < len(before)
    assert str(base) not in (result / "config.json").read_text()
    policy = load_policy(ModelSettings(checkpoint=str(result), device="cpu"))
    assert policy.info().name == "lerobot-smolvla"
