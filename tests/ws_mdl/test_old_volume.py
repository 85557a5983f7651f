"""Weights of an earlier version: the next epoch starts from them."""

import pytest

from tests.old_volume import old_volume, use

__all__ = ["old_volume"]
SMALL = ("--d-model", "16", "--N", "1", "--d-ff", "32")
TRAININGS = {
    "transformer.train": ("tmodel_01.pt", "--corpus", "reverse", "--size", "tiny", "--h", "2", *SMALL),
    "diffusion.train": ("model_01.pt", "--data", "digits", "--n-feat", "8", "--timesteps", "20"),
    "practice.forecast": (
        "forecast_01.pt", "--series", "made", "--lookback", "32", "--horizon", "8", "--direct", "16", "--season", "8",
        "--d-model", "16", "--N", "1", "--d-ff", "16",
    ),
}  # fmt: skip


@pytest.mark.parametrize("program", TRAININGS)
def test_old_weights_are_trained_further(old_volume, program):
    file, *words = TRAININGS[program]
    done = use(old_volume, f"services.ws_mdl.{program}", "--name", "old", "--device", "cpu", "--epochs", "2", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resuming from" in done.stdout and list((old_volume / "checkpoints").glob(f"*/old/{file}"))


def test_other_settings_than_the_old_runs_are_refused(old_volume):
    words = ("--name", "old", "--device", "cpu", "--epochs", "2", "--data", "digits", "--n-feat", "16")
    done = use(old_volume, "services.ws_mdl.diffusion.train", *words)
    assert done.returncode and "Traceback" not in done.stderr
    assert "n" in done.stderr and "feat" in done.stderr
