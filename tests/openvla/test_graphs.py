"""What a GPU captures, with a stand-in for CUDA's graphs: the shapes of the service, at its start and not later."""

import numpy as np
import pytest
import torch

from services.openvla.decoding.engine import MAX_PROMPT, Engine, capacity
from services.openvla.service.loading import load_policy
from services.openvla.service.settings import ModelSettings
from tests.openvla.test_logits import PROMPT, pixels
from vla_modelkit import devices
from vla_modelkit.graphs import CudaGraphs, Eager


class Replayed:
    """Computes a pass again on its own buffers and writes over its first outputs, as a replay does."""

    def __init__(self, function, buffers, outputs):
        self.function, self.buffers, self.outputs = function, buffers, outputs

    def replay(self):
        for output, value in zip(self.outputs, self.function(*self.buffers), strict=True):
            output.copy_(value)


class Graphs(CudaGraphs):
    def _capture(self, function, inputs):
        buffers = tuple(value.clone() for value in inputs)
        outputs = function(*buffers)
        return Replayed(function, buffers, outputs), buffers, outputs


@pytest.fixture
def padded(engines):
    """An engine of the tiny network with a GPU's shapes, for batches of one and two."""
    engine = Engine(engines().model, max_batch=2, fixed_shapes=True)
    engine.runner = Graphs()
    return engine


def test_a_pass_is_captured_once_and_replayed():
    graphs, double = Graphs(), lambda value: (2 * value,)
    first = graphs.run("double", double, torch.ones(2))[0]
    assert graphs.run("double", double, torch.full((2,), 3.0))[0] is first, "every run of a key has the same memory"
    assert first.tolist() == [6.0, 6.0] and list(graphs._graphs) == ["double"]


def test_a_sealed_runner_calls_what_it_has_not_captured():
    graphs, double = Graphs(), lambda value: (2 * value,)
    graphs.run("small", double, torch.ones(2))
    graphs.seal()
    assert graphs.run("large", double, torch.ones(4))[0].tolist() == [2.0] * 4
    assert graphs.run("small", double, torch.zeros(2))[0].tolist() == [0.0] * 2
    assert list(graphs._graphs) == ["small"]
    Eager().seal()


def test_a_longer_prompt_runs_uncaptured_while_serving(engines, padded):
    padded.warm_up(drafts=True)
    padded.runner.seal()
    captured = set(padded.runner._graphs)
    assert {key[2] for key in captured if key[0] == "prefill"} == {32, 48, 64}
    longer = [*PROMPT, *[500 + k for k in range(MAX_PROMPT - len(PROMPT))]]
    usual = engines().generate(pixels(2), [PROMPT, longer]).tokens
    draft = np.stack([np.stack([row, row, row]) for row in usual])
    for _ in range(2):
        np.testing.assert_array_equal(padded.generate(pixels(2), [PROMPT, longer], draft).tokens, usual)
    assert set(padded.runner._graphs) == captured


def test_the_service_captures_nothing_after_its_start(checkpoints, monkeypatch):
    sealed = []
    monkeypatch.setattr(Eager, "seal", lambda runner: sealed.append(runner))
    load_policy(ModelSettings(checkpoint=str(checkpoints("tiny")), device="cpu"))
    assert len(sealed) == 1


@pytest.mark.parametrize("patches", [16, 256, 512])
def test_a_cache_has_a_multiple_of_eight_slots(patches):
    assert capacity(patches) % 8 == 0 and 0 <= capacity(patches) - (patches + MAX_PROMPT + 7) < 40


def test_a_selected_gpu_becomes_the_current_one(monkeypatch):
    """Streams and captures name no device; on GPU 0 they would belong to another card than the model."""
    current = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(devices, "require_built_for", lambda torch, name: None)
    assert devices.choose_device("cuda:1") == torch.device("cuda:1") == current[0]
    assert devices.choose_device("auto") == torch.device("cuda:0") == current[1]
    assert devices.choose_device("cpu") == torch.device("cpu") and len(current) == 2
