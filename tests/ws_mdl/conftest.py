"""Fixtures for the labs: a volume of the test's own, and small Transformers."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported: tests share their cores with others
# A number of its own for all runs of a test, which are compared bit for bit: else each takes the cores idle just then.
os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))

import pytest
import torch

from vla_common.volume import Volume

# What a Transformer can be made of; every property holds for all of them.
VARIANTS = {
    "course": {},
    "paper": {"norm": "post"},
    "gelu, learned, tied": {"activation": "gelu", "positions": "learned", "tied": True},
    "rotary": {"positions": "rotary"},
    "relative": {"positions": "relative"},
}
SRC_VOCAB, TGT_VOCAB, SEQ = 40, 37, 24


@pytest.fixture
def volume(tmp_path, monkeypatch) -> Volume:
    """An empty shared volume, also for programs that a test starts."""
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "volume"))
    return Volume()


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def transformer(request):
    """A small Transformer of each variant, in eval mode, with weights large enough to tell words apart."""
    from services.ws_mdl.transformer.model import build_transformer

    torch.manual_seed(0)
    model = build_transformer(SRC_VOCAB, TGT_VOCAB, SEQ, SEQ, d_model=32, N=2, h=4, d_ff=64, **request.param)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter *= 4.0 if "embed" in name or "proj" in name else 1.0
    return model.eval()
