"""On a GPU: a captured graph answers what the same network answers without one, flash-attn what SDPA answers."""

import numpy as np
import pytest
import torch

from services.gr00t.service.layout import layout
from services.gr00t.service.loading import load_own_policy
from services.gr00t.service.settings import Settings
from tests.gr00t.harness import observe
from vla_modelkit.builds import flash_obstacle

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


def test_graphs_answer_what_the_network_answers_uncaptured(tiny_checkpoints):
    found = tiny_checkpoints("libero")
    one = found.embodiment()
    sizes = layout(one, found.metadata[one.tag])
    policy = load_own_policy(Settings(device="cuda", dtype="fp32", max_batch=2), found, sizes)
    seen = [observe(sizes, seed) for seed in range(2)]
    captured = policy.act(seen)
    assert policy.engine._captured, "shapes were captured while it was loaded"
    policy.engine._captured.clear()
    for with_graph, without in zip(captured, policy.act(seen), strict=True):
        np.testing.assert_allclose(with_graph.actions, without.actions, atol=1e-5)


def test_flash_attention_answers_what_sdpa_answers(tiny_checkpoints):
    found = tiny_checkpoints("libero")
    one = found.embodiment()
    sizes = layout(one, found.metadata[one.tag])
    if (obstacle := flash_obstacle("cuda", torch.bfloat16)) is not None:
        pytest.skip(obstacle)
    seen = [observe(sizes, seed) for seed in range(2)]

    def act(dtype, attention):
        policy = load_own_policy(Settings(device="cuda", dtype=dtype, attention=attention, max_batch=2), found, sizes)
        return np.stack([reply.actions for reply in policy.act(seen)])

    sdpa = act("bf16", "sdpa")
    rounding = np.abs(sdpa - act("fp32", "sdpa")).max()
    assert np.abs(act("bf16", "flash") - sdpa).max() <= 2 * rounding, "further apart than 16 bits explain"
