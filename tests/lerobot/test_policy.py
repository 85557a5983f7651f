"""Actions equal LeRobot's own to the bit: its policy, its processors, its queues, one policy per session."""

import numpy as np
import pytest
import torch
from lerobot.configs import PreTrainedConfig
from lerobot.policies.factory import get_policy_class, make_pre_post_processors

from services.lerobot.loading import load_policy
from services.lerobot.settings import ModelSettings
from vla_contract import Observation
from vla_modelkit import noise

CASES = {
    "act": {},
    "act-ensembling": {"temporal_ensemble_coeff": 0.01, "n_action_steps": 1},
    "diffusion": {},
    "vqbet": {},
    "tdmpc": {},
}
STEPS, SESSIONS = 20, ("first", "second")


def observe(policy, session: str, step: int, episode: int = 0) -> Observation:
    rng = np.random.default_rng([ord(session[0]), step, episode])
    info = policy.info()
    images = {camera: rng.integers(0, 256, (96, 96, 3), np.uint8) for camera in info.cameras}
    return Observation(images, rng.normal(size=info.state_size).astype(np.float32), "open the drawer", session, step)


class Upstream:
    """lerobot-eval's loop for one episode at a time: select_action every step, through the stored processors."""

    def __init__(self, directory, cameras):
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


@pytest.fixture(params=CASES)
def directory(request, checkpoints):
    return checkpoints(request.param.split("-")[0], **CASES[request.param])


def test_two_interleaved_sessions_equal_upstream_to_the_bit(directory):
    policy = load_policy(ModelSettings(checkpoint=str(directory), device="cpu"))
    upstream = {session: Upstream(directory, policy.cameras) for session in SESSIONS}
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


def test_a_batch_of_act_equals_single_requests(checkpoints):
    policy = load_policy(ModelSettings(checkpoint=str(checkpoints("act")), device="cpu"))
    observations = [observe(policy, session, 0) for session in "abcdefgh"]
    together = policy.act(observations)
    alone = [policy.act([observation])[0] for observation in observations]
    assert all(np.allclose(a.actions, b.actions, atol=1e-5) for a, b in zip(together, alone, strict=True))
