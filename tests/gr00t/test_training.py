"""Fine-tuning on the tiny checkpoint and a real data set: what is trained, what stays, going on, the result."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from services.gr00t import __main__ as serving
from services.gr00t.checkpoint import tiny
from services.gr00t.checkpoint.directory import find
from services.gr00t.training import __main__ as program
from services.gr00t.training import network
from services.gr00t.training.samples import collate
from services.gr00t.training.settings import Finetune
from tests import several
from tests.gr00t import robots
from tests.gr00t.conftest import ROOT, SHARED
from tests.running import running
from vla_common.volume import Volume
from vla_contract import Observation
from vla_contract.client.client import PolicyClient
from vla_datasets import marks
from vla_datasets.lerobot import LeRobotDataset
from vla_modelkit.training.machine import TrainingMachine

CPU = TrainingMachine(torch.device("cpu"))
THREADS = torch.get_num_threads()
ROBOT = 31  # new_embodiment's encoders and decoder
QUICK = {"max_steps": 4, "batch_size": 4, "log_every": 1}


class StopAfter:
    """Ctrl-C after some steps; None: never."""

    def __init__(self, steps=None):
        self.left = steps

    @property
    def requested(self):
        if self.left is not None:
            self.left -= 1
        return self.left == 0


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    """A volume with the tiny checkpoint, without dropout in its head, and a data set."""
    torch.set_num_threads(1)  # so small a network is faster so, and twice as fast where others compute too
    root = tmp_path_factory.mktemp("training")
    robots.make(root / "datasets" / "toy")
    tiny.make(root / "checkpoints" / "gr00t-tiny", "libero")
    plain = root / "checkpoints" / "plain"
    shutil.copytree(root / "checkpoints" / "gr00t-tiny", plain)
    config = json.loads((plain / "config.json").read_text())
    for part in ("diffusion_model_cfg", "vl_self_attention_cfg"):
        config["action_head_cfg"][part]["dropout"] = 0.0
    (plain / "config.json").write_text(json.dumps(config))
    (plain / "checkpoint.json").write_text(json.dumps({"eagle": tiny.TINY.eagle()}))
    yield Volume(root)
    torch.set_num_threads(THREADS)


def train(volume, name, stop_after=None, **changes):
    settings = Finetune(**{"dataset": "toy", "name": name, **QUICK, **changes})
    return program.train(settings, volume, CPU, StopAfter(stop_after))


@pytest.fixture(scope="module")
def whole(volume):
    """Four steps without a break, and the files that they left."""
    return train(volume, "whole"), load_file(volume.checkpoints / "whole" / "model.safetensors")


@pytest.fixture(scope="module")
def base(volume):
    return load_file(volume.checkpoints / "gr00t-tiny" / "model.safetensors")


# --- what is trained ----------------------------------------------------------------------------------------


def test_only_this_robots_rows_change_and_all_of_the_head_around_them(whole, base):
    _, made = whole
    assert made.keys() == base.keys()
    for name, value in made.items():
        assert value.dtype == base[name].dtype
        if name.startswith(network.ROWS):
            others = torch.arange(len(value)) != ROBOT
            assert torch.equal(value[others], base[name][others]), name
    changed = {name for name in made if not torch.equal(made[name], base[name])}
    assert changed and all(name.startswith("action_head.") for name in changed)
    trained = {name for name in made if network.is_trained(name, Finetune("toy"))}
    assert all(name.startswith("action_head.") for name in trained) and len(changed) > 0.8 * len(trained)
    assert {name.split(".")[1] for name in changed} >= {"model", "state_encoder", "action_decoder", "vl_self_attention"}


def test_without_the_diffusion_model_it_keeps_its_bits(volume, base):
    train(volume, "around", tune_diffusion_model=False)
    made = load_file(volume.checkpoints / "around" / "model.safetensors")
    changed = {name.split(".")[1] for name in made if not torch.equal(made[name], base[name])}
    assert "model" not in changed and {"action_encoder", "vl_self_attention"} <= changed


def test_merged_adapters_do_what_adapters_did(volume, base):
    trainer = train(volume, "lora", lora_rank=4, lora_dropout=0.0, learning_rate=0.01)
    job = program.prepare(trainer.settings, volume)
    batch = collate([job.samples[place] for place in range(4)])
    trainer.network.model.eval()
    with torch.no_grad():
        adapted = trainer.loss(*batch)
        fresh = program.new_trainer(job, CPU)
        positions, width = trainer.network.image_positions, trainer.network.width
        before = network.FlowLoss(fresh.network.model.eval(), positions, width)(*batch)
        whole = network.load(
            job.config, program.Safetensors(job.base.directory), ROBOT, Finetune("toy"), CPU.device, torch.float32
        )
        merged = network.merged(trainer.network.model)
        whole.load_state_dict(merged, strict=False)
        same = network.FlowLoss(whole, positions, width)(*batch)
    assert abs(float(adapted - same)) < 1e-5 < abs(float(adapted - before))
    made = load_file(volume.checkpoints / "lora" / "model.safetensors")
    changed = {name for name in made if not torch.equal(made[name], base[name])}
    assert all(name.startswith(network.ROWS) or name.split(".")[-2] in network.ADAPTED for name in changed)
    assert any(".attn1.to_q." in name for name in changed) and any(name.startswith(network.ROWS) for name in changed)


@pytest.mark.parametrize(
    ("flags", "alpha", "scale"),
    [
        ({"lora_rank": 128}, 128, 1.0),
        ({"lora_rank": 128, "lora_alpha": 16.0}, 16, 0.125),
        ({"lora_rank": 4, "lora_alpha": 8.0}, 8, 2.0),
    ],
)
def test_merged_weights_have_the_adapters_times_alpha_over_rank(volume, base, capsys, flags, alpha, scale):
    """alpha follows the rank; both are printed and recorded; below a quarter there is a warning."""
    name = f"alpha-{flags['lora_rank']}-{alpha}"
    trainer = train(volume, name, base="plain", max_steps=2, learning_rate=0.01, **flags)
    printed = capsys.readouterr().out
    assert f"rank {flags['lora_rank']}, alpha {alpha}:" in printed and f"scaled by {scale:g}\n" in printed
    assert ("warning: below 0.25" in printed and f"--lora-alpha {flags['lora_rank']} " in printed) == (scale < 0.25)
    record = find(name, volume).record["finetuned"]
    assert (record["lora_rank"], record["lora_alpha"]) == (flags["lora_rank"], alpha)
    made = load_file(volume.checkpoints / name / "model.safetensors")
    (adapter, one) = next((n, m) for n, m in trainer.network.model.named_modules() if isinstance(m, network.LowRank))
    added = scale * (one.up @ one.down).detach()
    expected = (base[f"{adapter}.weight"].float() + added).to(made[f"{adapter}.weight"].dtype)
    assert added.abs().max() > 0 and torch.equal(made[f"{adapter}.weight"], expected)


def test_resume_keeps_the_alpha_of_the_interrupted_run(volume, capsys):
    """As one of an earlier version, whose alpha was 16 at any rank."""
    flags = {"base": "plain", "lora_rank": 32}
    train(volume, "earlier", stop_after=2, lora_alpha=16.0, **flags)
    capsys.readouterr()
    resumed = train(volume, "earlier", **flags)
    assert "scaled by 0.5" in capsys.readouterr().out
    assert resumed.step == 4 and find("earlier", volume).record["finetuned"]["lora_alpha"] == 16
    with pytest.raises(ValueError, match="lora alpha 16.0, not 32.0; .*--name"):
        train(volume, "earlier", lora_alpha=32.0, **flags)
    assert Finetune("toy").identity(1)["lora_alpha"] == 16, "states without LoRA go on too"


def test_episodes_marked_as_bad_are_left_out_and_the_result_reports_it(volume):
    settings, directory = Finetune(dataset="toy", name="marked", **QUICK), volume.path("datasets") / "toy"
    before = program.prepare(settings, volume)
    bad = marks.mark(LeRobotDataset(directory), bad=[0])
    try:
        job = program.prepare(settings, volume)
    finally:
        marks.mark(LeRobotDataset(directory), good=[0])
    assert [episode.index for episode in job.samples.episodes] == [
        episode.index for episode in before.samples.episodes if episode.index
    ]
    made, made_before = job.provenance(1), before.provenance(1)
    assert (made["left_out"], made["marks"]) == (1, bad.digest) and "marks" not in made_before
    assert made["data_set"] != made_before["data_set"]


def test_the_loss_falls(volume):
    trainer = train(volume, "longer", max_steps=16, learning_rate=0.01, base="plain", batch_size=4)
    job = program.prepare(trainer.settings, volume)
    batch = collate([job.samples[place] for place in range(8)])
    with torch.no_grad():
        before, after = (one.loss(*batch) for one in (program.new_trainer(job, CPU), trainer))
    assert after < 0.8 * before


def test_the_rate_rises_and_falls_as_upstreams():
    settings = Finetune("toy", max_steps=100, learning_rate=0.5)
    rates = [settings.rate(step) for step in range(101)]
    assert rates[:6] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5]) and rates[-1] == pytest.approx(0)
    assert rates[5:] == sorted(rates[5:], reverse=True)


# --- going on -----------------------------------------------------------------------------------------------


def test_two_steps_and_two_more_are_four_bit_for_bit(volume, whole, capsys):
    assert train(volume, "halves", stop_after=2).step == 2
    assert "run the same command to resume" in capsys.readouterr().out
    assert not (volume.checkpoints / "halves").exists()
    (volume.runs / "finetune/halves/step_03.pt").write_bytes(b"PK half of a state")
    trainer = train(volume, "halves", resume=True)
    said = capsys.readouterr()
    assert "from step_02.pt" in said.out and "step_03.pt cannot be read" in said.err
    other = whole[0]
    for name, value in other.trained.items():
        assert torch.equal(value, trainer.trained[name]), name
    ours, theirs = (one.optimizer.state_dict()["state"] for one in (trainer, other))
    for key, moments in theirs.items():
        assert all(torch.equal(value, ours[key][name]) for name, value in moments.items())


def test_the_same_command_after_the_end_makes_nothing_again(volume, whole, capsys):
    train(volume, "whole")
    assert "all steps are done" in capsys.readouterr().out
    assert not list(volume.checkpoints.glob("whole.before-*"))


def test_a_run_is_not_mixed_with_another(volume, whole):
    with pytest.raises(ValueError, match="learning rate 0.0001, not 0.1; .*--name"):
        train(volume, "whole", learning_rate=0.1)
    with pytest.raises(ValueError, match="with base"):
        train(volume, "whole", base="plain")
    with pytest.raises(ValueError, match="no training state to resume.*--resume"):
        train(volume, "fresh", resume=True)


def test_two_processes_learn_as_one_with_twice_the_batch(volume, tmp_path):
    flags = ("--base", "plain", "--max-steps", "2", "--precision", "fp32", "--device", "cpu", "--log-every", "1")
    variables = {key: value for key, value in os.environ.items() if not key.startswith("VLALAB_")}
    variables |= {"PYTHONPATH": ":".join((str(ROOT), *SHARED)), "VLALAB_VOLUME": str(volume.root)}
    words = ["-m", "services.gr00t.training", "--dataset", "toy", *flags, "--batch-size=2", "--name=two"]
    printed = several.trained(words, tmp_path, variables, cwd=ROOT)
    one = train(volume, "one", base="plain", max_steps=2)
    state = torch.load(volume.runs / "finetune/two/step_02.pt", weights_only=True)
    for name, value in one.trained.items():
        if not name.endswith("to_k.bias"):  # softmax does not see it: its gradient is rounding, which Adam scales up
            torch.testing.assert_close(state["trained"][name], value, atol=2e-5, rtol=1e-4, msg=name)
    assert "2 processes" in printed


# --- the result ---------------------------------------------------------------------------------------------


def test_the_result_says_what_it_was_made_from(volume, whole):
    found = find("whole", volume)
    made = found.record["finetuned"]
    assert made["dataset"] == "toy" and made["max_steps"] == 4 and made["samples_per_step"] == 4 and made["data_set"]
    assert made["base"].startswith("random-tiny")
    one = found.embodiment()
    assert one.name == "toy" and tuple(one.cameras) == ("front", "wrist") and found.overrides == tiny.TINY.eagle()
    part = found.metadata["new_embodiment"]
    assert part["modalities"]["video"]["front"] == {"resolution": [64, 64], "channels": 3, "fps": 10.0}
    assert part["modalities"]["action"]["gripper"] == {
        "absolute": False, "rotation_type": None, "shape": [1], "continuous": True,
    }  # fmt: skip
    assert len(part["statistics"]["state"]["arm"]["q99"]) == 2


def test_curves_are_where_tensorboard_looks(volume, whole):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(volume.path("logs") / "tensorboard/finetune/whole"))
    events.Reload()
    assert [Scalar.step for Scalar in events.Scalars("train/loss")] == [1, 2, 3, 4]
    assert set(events.Tags()["scalars"]) >= {"train/learning_rate", "train/gradient_norm", "train/samples_per_s"}


def test_the_result_is_served_over_http(volume, whole):
    load, options = serving.prepare(serving.Settings(str(volume.checkpoints / "whole"), device="cpu"))
    with running(load, **options) as service, PolicyClient(service.url) as client:
        info = client.info()
        images = {camera: np.zeros((robots.SIDE, robots.SIDE, 3), np.uint8) for camera in info.cameras}
        answer = client.act(Observation(images, np.zeros(3, np.float32), robots.TASKS[0], "s", 0))
    assert info.checkpoint.repo == "finetuned-whole" and [part.name for part in info.action] == ["arm", "gripper"]
    assert answer.actions.shape == (16, 3) and np.isfinite(answer.actions).all()
