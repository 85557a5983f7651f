"""Weights of mini-VLA of an earlier version: their network is gone, and every use says so and what to do."""

import pytest

from tests.old_volume import old_volume, use

__all__ = ["old_volume"]
TRAIN = ("services.minivla.train", "--data", "old", "--size", "tiny", "--name", "old", "--device", "cpu")
SERVE = ("services.minivla", "--name", "old", "--device", "cpu", "--port", "0")


@pytest.mark.parametrize("words", [TRAIN, SERVE])
def test_old_weights_are_refused_with_what_to_do(old_volume, words):
    done = use(old_volume, *words)
    assert done.returncode, done.stdout
    assert "earlier version" in done.stderr and "./lab train minivla --data old" in done.stderr
