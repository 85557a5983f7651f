"""That the sides which `./lab bench openvla` compares compute in different ways."""

import numpy as np
import torch
from transformers import LlamaForCausalLM

from bench import openvla as bench
from services.openvla.checkpoint import tiny
from services.openvla.model.linear import Packed
from tests.calls import count_calls


def test_openvla_runs_the_engine_on_one_side_and_transformers_on_the_other(monkeypatch):
    spec, cpu = tiny.SPECS["tiny"], torch.device("cpu")
    engine, source = bench.build(spec, torch.float32, cpu)
    upstream = bench.upstream(spec, source, torch.float32, cpu, None)
    picture = np.zeros((spec.image_size, spec.image_size, 3), np.uint8)
    ours, theirs = count_calls(monkeypatch, Packed, "__call__"), count_calls(monkeypatch, LlamaForCausalLM, "forward")
    tokens = engine.generate(picture[None], [bench.PROMPT]).tokens[0]
    assert len(ours) > 0 and len(theirs) == 0
    ours.clear()
    assert np.array_equal(upstream(picture), tokens)
    assert len(ours) == 0 and len(theirs) == 7, "one pass for each token"
