"""LeRobot's own way to act, which tests and the benchmark compare the service with."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from lerobot.configs import PreTrainedConfig
from lerobot.policies.factory import get_policy_class, make_pre_post_processors

from services.lerobot.repositories import SUBDIRECTORY
from vla_contract import Observation, Policy, PolicyInfo
from vla_modelkit import noise

CAMERAS = {"xvla": "image=agentview,image2=robot0_eye_in_hand"}  # of tiny checkpoints that are no known robot's


class Reference:
    """lerobot-eval's loop for one session: select_action every step, through the stored processors.

    draft: a directory to create, with the checkpoint as LeRobot reads it: the paths of tiny backbones.
    """

    def __init__(self, directory: Path, cameras: Mapping[str, str], draft: Path):
        shutil.copytree(directory, draft)
        for file in draft.glob("*.json"):
            file.write_text(file.read_text().replace('"tiny/', f'"{draft}/{SUBDIRECTORY}/tiny/'))
        config = PreTrainedConfig.from_pretrained(draft)
        config.device = "cpu"
        self.policy = get_policy_class(config.type).from_pretrained(draft, config=config)
        self.preprocessor, self.postprocessor = make_pre_post_processors(config, str(draft))
        self.cameras = cameras

    @torch.inference_mode()
    def act(self, observation: Observation) -> np.ndarray:
        """Return the action [A]; step 0 starts an episode. The noise is the service's."""
        if observation.step == 0:
            self.policy.reset()
        torch.manual_seed(noise.seed_of(observation, 0))
        batch = {
            key: torch.from_numpy(observation.images[camera]).permute(2, 0, 1)[None].float() / 255
            for key, camera in self.cameras.items()
        }
        batch |= {"observation.state": torch.from_numpy(observation.state)[None], "task": [observation.instruction]}
        return self.postprocessor(self.policy.select_action(self.preprocessor(batch))).numpy()[0]


def random_observation(info: PolicyInfo, session: str, step: int, episode: int = 0) -> Observation:
    """Return an observation of random images (96 × 96) and state, the same for the same arguments."""
    rng = np.random.default_rng([*session.encode(), step, episode])
    images = {camera: rng.integers(0, 256, (96, 96, 3), np.uint8) for camera in info.cameras}
    return Observation(images, rng.normal(size=info.state_size).astype(np.float32), "open the drawer", session, step)


def count_differences(policy: Policy, references: Mapping[str, Reference], episodes: tuple[int, ...] = (7, 20)) -> int:
    """Return how many actions differ by any bit: interleaved sessions, in episodes of so many steps.

    references: session → LeRobot's own policy.
    """
    info, different = policy.info(), 0
    for episode, steps in enumerate(episodes):
        queues: dict[str, list[np.ndarray]] = {session: [] for session in references}
        for step in range(steps):
            for session, reference in references.items():
                observation = random_observation(info, session, step, episode)
                if not queues[session]:
                    queues[session] = list(policy.act([observation])[0].actions)
                different += not np.array_equal(queues[session].pop(0), reference.act(observation))
        for session in references:
            policy.reset(session)
    return different
