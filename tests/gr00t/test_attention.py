"""Attention: flash only where it can run; SDPA computes the same; the stand-in for RADIO stays where it belongs."""

import sys

import pytest

from services.gr00t.model import attention
from services.gr00t.model.attention import KINDS, AttentionKernel, choose
from vla_modelkit.builds import flash_obstacle


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
