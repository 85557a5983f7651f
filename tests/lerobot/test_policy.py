"""Actions equal LeRobot's own to the bit: its policy, its processors, its queues, one policy per session."""

import numpy as np
import pytest
import torch

from services.lerobot import tiny
from services.lerobot.policy import load_policy
from services.lerobot.reference import CAMERAS, Reference, count_differences, random_observation
from services.lerobot.settings import ModelSettings
from services.lerobot.types import TINY
from services.libero.profiles import PROFILES

# Of the others, an episode takes more than 10 s on a busy machine.
QUICK = ("act", "multi_task_dit", "smolvla", "tdmpc")
CASES = {**{kind: {} for kind in TINY}, "act-ensembling": {"temporal_ensemble_coeff": 0.01, "n_action_steps": 1}}


@pytest.fixture(params=[case if case in QUICK else pytest.param(case, marks=pytest.mark.nightly) for case in CASES])
def directory(request, checkpoints):
    return checkpoints(request.param.split("-")[0], **CASES[request.param])


def load(directory):
    cameras = CAMERAS.get(directory.name, "")
    return load_policy(ModelSettings(checkpoint=str(directory), device="cpu", cameras=cameras))


def test_two_interleaved_sessions_equal_lerobot_to_the_bit(directory, tmp_path):
    policy = load(directory)
    references = {name: Reference(directory, policy.cameras, tmp_path / name) for name in ("first", "second")}
    assert count_differences(policy, references) == 0  # the first episode of two is interrupted by a reset


def test_a_batch_of_act_equals_single_requests_but_for_rounding(checkpoints):
    policy = load(checkpoints("act"))
    observations = [random_observation(policy.info(), session, 0) for session in "abcdefgh"]

    def difference() -> float:
        together = policy.act(observations)
        alone = [policy.act([observation])[0] for observation in observations]
        return max(np.abs(a.actions - b.actions).max() for a, b in zip(together, alone, strict=True))

    assert difference() < 1e-4
    module = policy.loaded.policy.double()
    for part in module.modules():  # LeRobot makes some inputs float32 itself
        part.register_forward_pre_hook(lambda _, inputs: tuple(double(value) for value in inputs))
    assert difference() < 1e-6  # the answer is float32


def double(value):
    return value.double() if torch.is_tensor(value) and value.is_floating_point() else value


@pytest.mark.parametrize("size", [64, 128, 256])
def test_images_are_rendered_in_the_size_that_the_policy_was_trained_on(size, tmp_path, monkeypatch):
    monkeypatch.setattr(tiny, "IMAGE_SIZE", size)
    policy = load_policy(ModelSettings(checkpoint=str(tiny.write(tmp_path / "act", "act")), device="cpu"))
    profile = PROFILES[policy.info().profile]
    assert (profile.camera_size, profile.image_size, profile.source) == (size, size, PROFILES["lerobot"].source)
