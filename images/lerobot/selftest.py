"""The smoke test of LeRobot's environment: a part of its image's build; see images/common/selftest.py."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here asks the hub

from images.common.selftest import (
    check_attention,
    check_egl,
    check_imports,
    check_torch,
    expect,
    run,
    use_single_thread,
)

MODULES = (
    "torchvision", "transformers", "diffusers", "peft", "accelerate", "datasets", "av", "cv2", "pyarrow", "h5py",
    "tyro", "tensorboard", "gym_aloha", "OpenGL", "simplejpeg", "lerobot.scripts.lerobot_train", "matplotlib.pyplot",
    "jupyterlab", "ipykernel", "ipywidgets",
)  # fmt: skip
NOT_INSTALLED = {"gaussian_actor"}  # reinforcement learning on robots


def check_policies() -> str:
    """Check that LeRobot's factory has a class for every type, with the packages of its extra."""
    import lerobot
    import lerobot.policies
    from lerobot.configs import PreTrainedConfig
    from lerobot.policies.factory import get_policy_class

    expect(lerobot.__version__ == "0.6.1", f"lerobot is {lerobot.__version__}, expected 0.6.1")
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


if __name__ == "__main__":
    use_single_thread()
    dependencies = {
        "torch": lambda: check_torch("lerobot", {"": ("2.11.0", "13.0")}),
        "attention": check_attention,
        "imports": lambda: check_imports(MODULES),
        "policies": check_policies,
        "egl": check_egl,
    }
    sys.exit(run("lerobot", dependencies, {"inference": check_inference}))
