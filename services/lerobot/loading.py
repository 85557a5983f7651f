"""From settings to a policy that is ready."""

from __future__ import annotations

from functools import partial

import numpy as np

from services.lerobot.checkpoint import load
from services.lerobot.policy import LeRobotPolicy
from services.lerobot.robots import camera_of, robot_of
from services.lerobot.settings import ModelSettings, checkpoint_directory
from vla_contract import Observation, PolicyInfo
from vla_modelkit.canary import check_sees
from vla_modelkit.checkpoint import identity
from vla_modelkit.devices import choose_device


def load_policy(settings: ModelSettings) -> LeRobotPolicy:
    """Load and check the policy. Raises CheckpointError."""
    directory, device = checkpoint_directory(settings.checkpoint), choose_device(settings.device)
    loaded = load(directory, str(device), settings.remote_code, settings.statistics)
    robot = robot_of(loaded.config, settings.robot)
    cameras = camera_of(loaded.config, robot, settings.camera_table())
    policy = LeRobotPolicy(loaded, robot, cameras, identity(directory), settings.seed, settings.max_batch, device)
    if cameras:
        shapes = {camera: loaded.config.image_features[key].shape[1:] for key, camera in cameras.items()}
        check_sees(policy, partial(example, policy.info(), shapes))
    return policy


def example(info: PolicyInfo, shapes: dict[str, tuple[int, int]], level: int) -> Observation:
    """Return an observation whose images have one grey level (0 to 255)."""
    images = {name: np.full((*shape, 3), level, np.uint8) for name, shape in shapes.items()}
    state = np.zeros(info.state_size, np.float32) if info.needs_state else None
    return Observation(images, state, "pick up the cup", "canary", 0)
