"""Actions equal LeRobot's own to the bit: its policy, its processors, its queues, one policy per session."""

import shutil

import numpy as np
import pytest
import torch
from lerobot.configs import PreTrainedConfig
from lerobot.policies.factory import get_policy_class, make_pre_post_processors

from services.lerobot.loading import load_policy
from services.lerobot.settings import ModelSettings
from services.lerobot.types import TINY
from vla_contract import Observation
from vla_modelkit import noise

# Of the others, an episode takes more than 10 s on a busy machine.
QUICK = ("act", "multi_task_dit", "smolvla", "tdmpc")
CASES = {**{kind: {} for kind in TINY}, "act-ensembling": {"temporal_ensemble_coeff": 0.01, "n_action_steps": 1}}
CAMERAS = {"xvla": "image=agentview,image2=robot0_eye_in_hand"}  # of no known robot
STEPS, SESSIONS = 20, ("first", "second")


def observe(policy, session: str, step: int, episode: int = 0) -> Observation:
    rng = np.random.default_rng([ord(session[0]), step, episode])
    info = policy.info()
    images = {camera: rng.integers(0, 256, (96, 96, 3), np.uint8) for camera in info.cameras}
    return Observation(images, rng.normal(size=info.state_size).astype(np.float32), "open the drawer", session, step)


class Upstream:
    """lerobot-eval's loop for one episode at a time: select_action every step, through the stored processors."""

    def __init__(self, directory, cameras, draft):
        directory = shutil.copytree(directory, draft)
        for file in directory.glob("*.json"):  # LeRobot gets the tiny backbones as paths
            file.write_text(file.read_text().replace('"tiny/', f'"{directory}/repositories/tiny/'))
        config = PreTrainedConfig.from_pretrained(directory)
        config.device = "cpu"
        self.policy = get_policy_class(config.type).from_pretrained(directory, config=config)
        self.pre, self.post = make_pre_post_processors(config, str(directory))
        self.cameras = cameras

    def act(self, observation: Observation) -> np.ndarray:
        if observation.step == 0:
            self.policy.reset()
        torch.manual_seed(noise.seed_of(observation, 0))
        batch = {
            key: torch.from_numpy(observation.images[camera]).permute(2, 0, 1)[None].float() / 255
            for key, camera in self.cameras.items()
        }
        batch |= {"observation.state": torch.from_numpy(observation.state)[None], "task": [observation.instruction]}
        with torch.inference_mode():
            return self.post(self.policy.select_action(self.pre(batch))).numpy()[0]


@pytest.fixture(params=[case if case in QUICK else pytest.param(case, marks=pytest.mark.nightly) for case in CASES])
def directory(request, checkpoints):
    return checkpoints(request.param.split("-")[0], **CASES[request.param])


def test_two_interleaved_sessions_equal_upstream_to_the_bit(directory, tmp_path):
    policy = load(directory)
    upstream = {session: Upstream(directory, policy.cameras, tmp_path / session) for session in SESSIONS}
    for episode, steps in enumerate((7, STEPS)):  # the first one is interrupted by a reset
        queues = {session: [] for session in SESSIONS}
        for step in range(steps):
            for session in SESSIONS:
                observation = observe(policy, session, step, episode)
                expected = upstream[session].act(observation)
                if not queues[session]:
                    queues[session] = list(policy.act([observation])[0].actions)
                assert np.array_equal(queues[session].pop(0), expected), (session, step)
        for session in SESSIONS:
            policy.reset(session)


def load(directory):
    cameras = CAMERAS.get(directory.name, "")
    return load_policy(ModelSettings(checkpoint=str(directory), device="cpu", cameras=cameras))


def test_a_batch_of_act_equals_single_requests_but_for_rounding(checkpoints):
    policy = load(checkpoints("act"))
    observations = [observe(policy, session, 0) for session in "abcdefgh"]

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
