"""The estimate of what training takes: arithmetic held against published sizes, activations against counted ones."""

from dataclasses import replace

import pytest
import torch

from services.gr00t.checkpoint.config import N1_5
from services.gr00t.checkpoint.tiny import MID
from services.gr00t.model.gr00t import Gr00t
from services.gr00t.model.loading import shapes
from services.gr00t.training import memory, network
from services.gr00t.training.settings import Finetune

LM_HEAD = 2048 * 151680  # upstream loads it and uses it not


@pytest.fixture(scope="module")
def whole():
    return shapes(N1_5)


@pytest.fixture(scope="module")
def published():
    return memory.TrainingMemory(N1_5, views=2)


def giga(count):
    return round(count / 1e9, 1)


def test_the_arithmetic_gives_the_published_sizes(whole):
    full, frozen = network.counts(whole, Finetune("d"))
    around, rest = network.counts(whole, Finetune("d", tune_diffusion_model=False))
    one, kept = network.counts(shapes(network.single_robot(N1_5)), Finetune("d"))
    assert giga(memory.weight_bytes(full, frozen + LM_HEAD)) == 20.4
    assert giga(memory.weight_bytes(around, frozen + LM_HEAD, rest - frozen)) == 13.8
    assert giga(memory.weight_bytes(one, kept, full - one)) == 16.1
    assert giga(memory.weight_bytes(one, kept)) == 14.9  # the other robots' rows stay on the disk


def test_adapters_are_as_many_as_upstreams(published):
    rank, none = (network.counts(published.tensors, Finetune("d", lora_rank=rank)) for rank in (64, 1))
    assert rank[1] == none[1] and round((rank[0] - none[0]) / 63 * 64 / 1e6, 1) == 13.1
    assert sum(network.is_adapted(name, Finetune("d", lora_rank=1)) for name in published.tensors) == 60


def test_activations_are_those_that_a_backward_pass_keeps():
    config = MID.model()
    head, seen = config.head, {}
    dropout = {"dit": replace(head.dit, dropout=0.2), "mixer": replace(head.mixer, dropout=0.2)}
    model = Gr00t(network.single_robot(replace(config, head=replace(head, **dropout))))
    network.set_training(model, Finetune("d"))
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(tensor):
        place = tensor.untyped_storage()
        if place.data_ptr() not in own:
            seen[place.data_ptr()] = place.nbytes(), tensor
        return tensor

    def kept(batch):
        seen.clear()
        with torch.autocast("cpu", torch.bfloat16), torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
            features = model.action_head.mix(torch.randn(batch, 2 * config.patches + memory.TEXT, head.features))
            contexts, state = model.action_head.contexts(features), torch.randn(batch, 1, head.state_dim)
            moment = model.action_head.moment(torch.full((batch, 1), 500))
            token, noise = model.action_head.state_encoder(state, 0), torch.randn(batch, head.horizon, head.action_dim)
            made = model.action_head.velocity(noise, token, 0, moment, contexts)
            assert made.requires_grad
        return sum(size for size, _ in seen.values())

    assert memory.sample_bytes(config, 2) == pytest.approx(kept(2) - kept(1), rel=0.1)


def test_what_cannot_fit_is_refused_with_what_would(published):
    with pytest.raises(MemoryError) as refused:
        published.require(Finetune("d"), 24e9, "cuda:0")
    said = str(refused.value)
    assert "cuda:0 has 24.0 GB free" in said and "On a card of 24 GB: --batch-size" in said
    assert "--no-tune-diffusion-model --batch-size 32" in said and "--lora-rank 16 --batch-size" in said
    assert "--force" in said
    published.require(Finetune("d"), 80e9, "cuda:0")
    published.require(Finetune("d", force=True), 24e9, "cuda:0")
    published.require(Finetune("d", batch_size=8), 24e9, "cuda:0")  # the DiT tuned at batch 8
    with pytest.raises(MemoryError, match="there: none"):
        published.require(Finetune("d", lora_rank=16), 2e9, "cuda:0")


def test_in_float32_it_takes_more_for_what_is_frozen(published):
    plain = memory.TrainingMemory(N1_5, 2, bf16=False)
    assert plain.estimate(Finetune("d")).weights > published.estimate(Finetune("d")).weights
