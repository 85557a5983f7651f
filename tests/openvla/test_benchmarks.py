"""That the sides which `./lab bench openvla` compares compute in different ways."""

import numpy as np
import torch
from transformers import LlamaForCausalLM

from bench import openvla as bench
from services.openvla.checkpoint import tiny
from services.openvla.model.linear import Packed
from services.openvla.model.llama import Llama
from tests.calls import count_calls
from tests.gpu_parts import run_gpu_parts

PARTS = ("openvla", "openvla_nf4", "openvla_oft", "openvla_fp32")


def test_openvla_runs_the_engine_on_one_side_and_transformers_on_the_other(monkeypatch):
    spec, cpu = tiny.SPECS["tiny"], torch.device("cpu")
    engine, source = bench.build(spec, torch.float32, cpu)
    plain = bench.PlainOpenVLA(spec.model_config(), source, torch.float32, cpu)
    image = np.zeros((spec.image_size, spec.image_size, 3), np.uint8)
    ours, theirs = count_calls(monkeypatch, Packed, "__call__"), count_calls(monkeypatch, LlamaForCausalLM, "forward")
    tokens = engine.generate(image[None], [bench.PROMPT]).tokens[0]
    assert len(ours) > 0 and len(theirs) == 0
    ours.clear()
    assert np.array_equal(plain.generate(image, bench.PROMPT), tokens)
    assert len(ours) == 0 and len(theirs) == 7, "one pass for each token"


def test_oft_runs_the_engine_on_one_side_and_transformers_on_the_other(monkeypatch):
    engine, plain = bench.build_oft(tiny.SPECS["tiny"], torch.float32, torch.device("cpu"))
    images, state = np.random.RandomState(0).randint(0, 256, (2, 64, 64, 3)).astype(np.uint8), np.linspace(-1, 1, 8)
    ours = count_calls(monkeypatch, Llama, "parallel")
    theirs = count_calls(monkeypatch, LlamaForCausalLM, "forward")
    made = engine.generate(images[None], [bench.PROMPT], state[None])[0]
    assert (len(ours), len(theirs)) == (1, 0)
    np.testing.assert_allclose(plain.generate(images, bench.PROMPT, state), made, atol=1e-4)
    assert (len(ours), len(theirs)) == (1, 1)


def test_gpu_runs_its_parts_of_openvla_small(tmp_path):
    results = run_gpu_parts(tmp_path, *PARTS, "openvla_flash", "egl_gpu")
    assert [results[name]["status"] for name in PARTS] == ["ok"] * len(PARTS)
    figures = {one["name"]: one["value"] for part in results.values() for one in part["figures"]}
    assert figures["gpu_openvla_fp32_tokens_equal"] == 1 and figures["gpu_openvla_batch_16"] > 0
    parts = [figures[f"gpu_openvla_one_stream_{part}"] for part in ("vision", "prefill", "decode")]
    assert abs(sum(parts) / figures["gpu_openvla_one_stream"] - 1) < 1e-3
    assert figures["gpu_openvla_nf4_one_stream"] > 0 and figures["gpu_openvla_oft_chunk"] > 0
    if not torch.cuda.is_available():
        assert results["openvla_flash"]["status"] == results["egl_gpu"]["status"] == "skipped"
        assert "GPU" in results["openvla_flash"]["reason"] and results["egl_gpu"]["reason"]
