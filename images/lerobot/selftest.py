"""The smoke test of LeRobot's environment; images/common/selftest.py runs it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from images.common.selftest import check_egl, expect

MODULES = (
    "torchvision", "transformers", "diffusers", "peft", "accelerate", "datasets", "av", "cv2", "pyarrow", "h5py",
    "tyro", "tensorboard", "gym_aloha", "OpenGL", "simplejpeg", "lerobot.scripts.lerobot_train", "matplotlib.pyplot",
    "jupyterlab", "ipykernel", "ipywidgets",
)  # fmt: skip
NOT_INSTALLED = {"gaussian_actor"}  # reinforcement learning on robots


def check_policies() -> str:
    """Check that LeRobot's factory has a class for every type, with the packages of its extra."""
    from lerobot.configs import PreTrainedConfig
    from lerobot.policies.factory import get_policy_class

    types = sorted(PreTrainedConfig.get_known_choices().keys() - NOT_INSTALLED)
    for name in types:
        get_policy_class(name)
    return f"{len(types)} types: {', '.join(types)}"


def check_inference() -> str:
    """Check one inference with a tiny random ACT checkpoint: loading, cameras, processors, a chunk of actions."""
    import numpy as np

    from services.lerobot import tiny
    from services.lerobot.policy import load_policy
    from services.lerobot.settings import ModelSettings
    from vla_contract import Observation

    with tempfile.TemporaryDirectory() as directory:
        checkpoint = tiny.write(Path(directory) / "act-tiny", "act")
        policy = load_policy(ModelSettings(checkpoint=str(checkpoint), device="cpu"))
        info = policy.info()
        images = {camera: np.full((96, 96, 3), 128, np.uint8) for camera in info.cameras}
        state = np.zeros(info.state_size, np.float32)
        chunk = policy.act([Observation(images, state, "open the drawer", "selftest", 0)])[0]
    if isinstance(chunk, Exception):
        raise chunk
    expect(chunk.actions.shape[1] == 7, f"the actions' shape is {chunk.actions.shape}, expected (n, 7)")
    return f"a chunk of {len(chunk.actions)} actions of {info.name}"


DEPENDENCIES = {"policies": check_policies, "egl": check_egl}
SERVICES = {"inference": check_inference}
