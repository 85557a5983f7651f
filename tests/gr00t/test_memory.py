"""A GPU that is too small: a smaller batch, or a message with the next step."""

import pytest
import torch

from services.gr00t.checkpoint.config import N1_5
from services.gr00t.model.loading import row_bytes
from services.gr00t.service import loading
from services.gr00t.service.layout import layout
from services.gr00t.service.settings import Settings
from vla_modelkit import memory


@pytest.fixture
def tiny(tiny_checkpoints):
    """A tiny checkpoint and its layout."""
    checkpoint = tiny_checkpoints("libero")
    robot = checkpoint.embodiment()
    return checkpoint, layout(robot, checkpoint.metadata[robot.tag])


def test_a_batch_that_does_not_fit_is_served_smaller(tiny, monkeypatch, caplog):
    monkeypatch.setattr(loading, "fitting_batch", lambda requested, row, device: min(requested, 3))
    policy = loading.load_policy(Settings(device="cpu", max_batch=8), *tiny)
    assert policy.engine.max_batch == policy.info().max_batch == 3
    assert "max_batch is 3 instead of 8" in caplog.text


def test_a_gpu_with_room_keeps_the_requested_batch(monkeypatch):
    """N1.5's weights leave 75 GB of an H100's memory, and 0.7 GB of a card of 6 GB."""
    row = row_bytes(N1_5, 600, 2, torch.bfloat16)
    assert 30e6 < row < 100e6
    for free, batch in ((75 * 10**9, 16), (700 * 10**6, 2), (10**6, 1)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, free))
        assert memory.fitting_batch(16, row, torch.device("cuda:0")) == batch


def test_running_out_of_memory_says_what_to_do(tiny, monkeypatch):
    def fill(*_):
        raise torch.cuda.OutOfMemoryError("Tried to allocate 2.00 GiB")

    monkeypatch.setattr(loading, "load_model", fill)
    with pytest.raises(MemoryError, match="out of GPU memory: Tried to allocate 2.00 GiB; set VLALAB_GR00T_DTYPE=bf16"):
        loading.load_policy(Settings(device="cpu"), *tiny)
