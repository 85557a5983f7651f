"""Attention: flash only where it can run; SDPA computes the same; the stand-in for RADIO stays where it belongs."""

import sys

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM, SiglipVisionConfig, SiglipVisionModel

from services.gr00t.model import attention
from services.gr00t.model.attention import KINDS, AttentionKernel, choose
from tests.gr00t.upstream.attention import _without_radio
from vla_modelkit.builds import flash_obstacle

TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "image_size": 56}
LANGUAGE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 2,
    "vocab_size": 50,
}


@pytest.mark.parametrize("wanted", ["auto", "sdpa"])
def test_cpu_uses_sdpa_and_reports_the_reason(wanted):
    chosen = choose(wanted, "cpu")
    assert chosen.kind == "sdpa" and chosen.reason


def test_unavailable_flash_attention_suggests_the_setting():
    with pytest.raises(ValueError, match="device is cpu.*VLALAB_GR00T_ATTENTION"):
        choose("flash", "cpu")


def test_an_unknown_kind_lists_the_known():
    with pytest.raises(ValueError, match=", ".join(KINDS)):
        choose("eager", "cpu")


def test_a_gpu_without_flash_attn_has_an_obstacle():
    if "flash_attn" in sys.modules or __import__("importlib.util").util.find_spec("flash_attn"):
        pytest.skip("flash-attn is installed here")
    assert flash_obstacle("cuda:0") == "flash-attn is not installed"
    assert choose("auto", "cuda:0") == AttentionKernel("sdpa", "flash-attn is not installed")


def test_flash_attention_runs_on_request_only_and_without_graphs(monkeypatch):
    """transformers' path to it waits for the host in every layer, which ends a capture."""
    monkeypatch.setattr(attention, "flash_obstacle", lambda device, dtype: None)
    assert choose("auto", "cuda:0").kind == "sdpa" and "capture" in choose("auto", "cuda:0").reason
    assert choose("auto", "cuda:0").fixed_shapes is None
    assert choose("flash", "cuda:0") == AttentionKernel("flash") and choose("flash", "cuda:0").fixed_shapes is False


@torch.no_grad()
def test_sdpa_sees_the_same_as_explicit_attention():
    torch.manual_seed(0)
    explicit = SiglipVisionModel._from_config(SiglipVisionConfig(**TOWER), attn_implementation="eager").eval()
    fused = SiglipVisionModel._from_config(SiglipVisionConfig(**TOWER), attn_implementation="sdpa").eval()
    fused.load_state_dict(explicit.state_dict())
    images = torch.randn(2, 3, 56, 56)
    assert torch.allclose(explicit(images).last_hidden_state, fused(images).last_hidden_state, atol=1e-5)


@torch.no_grad()
def test_sdpa_reads_the_same_as_explicit_attention():
    torch.manual_seed(0)
    explicit = Qwen3ForCausalLM._from_config(Qwen3Config(**LANGUAGE), attn_implementation="eager").eval()
    fused = Qwen3ForCausalLM._from_config(Qwen3Config(**LANGUAGE), attn_implementation="sdpa").eval()
    fused.load_state_dict(explicit.state_dict())
    tokens, mask = torch.randint(0, 50, (2, 9)), torch.tensor([[0] * 3 + [1] * 6, [1] * 9])
    one, other = (
        m(tokens, attention_mask=mask, output_hidden_states=True).hidden_states[-1] for m in (explicit, fused)
    )
    seen = mask.bool()
    assert torch.allclose(one[seen], other[seen], atol=1e-5)


def test_the_stand_in_for_radio_exists_for_a_while_and_builds_nothing(tmp_path):
    name = f"transformers_modules.{tmp_path.name}.radio_model"
    with _without_radio(tmp_path), pytest.raises(RuntimeError, match="SigLIP"):
        sys.modules[name].RADIOModel(None)
    assert name not in sys.modules
