"""Weights of mini-VLA of an earlier version: they are complete, and other epochs need another name."""

from tests.old_volume import old_volume, use

__all__ = ["old_volume"]
WORDS = ("services.minivla.train", "--data", "old", "--size", "tiny", "--name", "old", "--device", "cpu", "--epochs")


def test_old_weights_open(old_volume):
    done = use(old_volume, *WORDS, "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resuming from minivla_00.pt" in done.stdout


def test_a_longer_schedule_is_refused_with_what_to_do(old_volume):
    done = use(old_volume, *WORDS, "2")
    assert done.returncode and "Traceback" not in done.stderr
    assert "--name" in done.stderr
