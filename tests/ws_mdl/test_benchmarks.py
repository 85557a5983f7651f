"""That the sides which the labs' benchmarks compare compute in different ways."""

import json

import pytest
import torch
from torch import nn

from bench import diffusion, looks, transformer
from services.minivla.config import Config
from services.ws_mdl.diffusion import train as diffusion_train
from services.ws_mdl.transformer import model as lab_model
from services.ws_mdl.transformer.config import get_config
from services.ws_mdl.transformer.train import Trainer, get_ds
from tests.calls import count_calls
from tests.gpu_parts import run_gpu_parts
from vla_modelkit.training.machine import TrainingMachine, choose_machine

VALUES = {"false": False, "0": 0}
CPU = TrainingMachine(torch.device("cpu"))
SMALL = {"d_model": 32, "N": 1, "h": 4, "d_ff": 64}


@pytest.fixture
def data(volume, tmp_path):
    """A small corpus, with batches of the lab's."""
    return get_ds(get_config("tiny", corpus="reverse", device="cpu", batch_tokens=128), tmp_path, CPU, volume)


def test_looks_trains_networks_that_differ():
    """Every row changes the network or what it learns from; wordings are not the training's sentences."""
    trained = set()
    for settings in looks.ROWS.values():
        changes = dict(setting.split("=") for setting in settings)
        config = Config(data="demonstrations", **{name: VALUES.get(text, text) for name, text in changes.items()})
        trained.add((config.size, config.cameras, config.pictures, config.state, config.looks))
    assert len(trained) == len(looks.ROWS) and (next(iter(looks.ROWS.values())) == ())
    wordings = json.loads(looks.WORDINGS.read_text())
    assert set(wordings) == set(looks.BASES.values())
    for sentences in wordings.values():
        assert len(sentences) == 10 and all(len({*other, own}) == 6 for own, other in sentences.items())


def test_transformer_computes_in_the_courses_way_and_in_the_labs(data, tmp_path, monkeypatch):
    config = get_config("base", corpus="reverse", device="cpu", precision="fp32", **SMALL)
    plain = count_calls(monkeypatch, transformer.PlainAttention, "forward")
    plain_norm = count_calls(monkeypatch, transformer.PlainNorm, "forward")
    labs = count_calls(monkeypatch, lab_model.MultiHeadAttentionBlock, "forward")
    batch = next(iter(data.train_dataloader))
    pad = transformer.Special.of(data.tokenizer_src).pad
    sides = {
        "course": lambda: transformer.CourseTraining(config, data, tmp_path / "course").step(
            transformer.course_batch(batch, pad)
        ),
        "lab": lambda: Trainer(config, CPU, data, tmp_path).step([batch]),
    }
    called = {}
    for name, step in sides.items():
        for calls in (plain, plain_norm, labs):
            calls.clear()
        step()
        called[name] = [bool(calls) for calls in (plain, plain_norm, labs)]
    assert called == {
        "course": [True, True, False],
        "lab": [False, False, True],
    }


def test_transformer_pads_the_courses_batches_alone(data):
    batch = next(iter(data.train_dataloader))
    pad = transformer.Special.of(data.tokenizer_src).pad
    assert transformer.course_batch(batch, pad).encoder_input.shape[1] == transformer.SEQ > batch.encoder_input.shape[1]


def test_diffusion_trains_and_samples_in_the_courses_way_and_in_the_labs(monkeypatch):
    one_by_one = count_calls(monkeypatch, diffusion.OneByOne, "__getitem__")
    train_step = count_calls(monkeypatch, diffusion_train, "train_step")
    diffusion.CourseTraining(diffusion.linear_schedule(), torch.device("cpu")).step()
    assert (len(one_by_one), len(train_step)) == (diffusion.BATCH, 0)
    diffusion.LabTraining(choose_machine("cpu")).step()
    assert (len(one_by_one), len(train_step)) == (diffusion.BATCH, 1)
    plain = diffusion.ContextUnet(3, 64, 5, 16).eval()
    norms = [
        sum(isinstance(module, nn.BatchNorm2d) for module in network.modules())
        for network in (plain, diffusion.fused_for_sampling(plain))
    ]
    assert norms[0] > 0 == norms[1], "the lab samples without batch norms"


def test_gpu_trains_a_small_minivla(tmp_path):
    (result,) = run_gpu_parts(tmp_path, "minivla").values()
    assert result["status"] == "ok" and result["figures"][0]["value"] > 0
