"""Child process of bench/plus.py: runs episodes in LIBERO-plus's own environment."""

import json
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np


def stand_in() -> None:
    """Replace modules that its code imports and this environment lacks; its motion blur then cannot run."""
    from scipy.ndimage import gaussian_filter

    def gaussian(image, sigma, channel_axis):
        return gaussian_filter(image, (sigma, sigma, 0), mode="nearest", truncate=4.0)

    modules = {"skimage": {}, "skimage.filters": {"gaussian": gaussian}}
    modules |= {"wand": {}, "wand.api": {"library": MagicMock()}, "wand.image": {"Image": object}}
    modules |= {"gym": {"Env": object, "Space": object}, "filelock": {"FileLock": MagicMock()}}
    for name, members in modules.items():
        try:
            __import__(name)
        except ImportError:
            sys.modules[name] = types.ModuleType(name)
            vars(sys.modules[name]).update(members)


def main(work: Path) -> None:
    """Execute actions.npy on every task of tasks.json; write NUMBER.npz with states and images after each episode.

    Noise is applied only to the last image, seeded as in this project, and does not change the random state of the
    next reset.
    """
    stand_in()
    from liberoplus.liberoplus.envs import OffScreenRenderEnv

    setup, actions = json.loads((work / "tasks.json").read_text()), np.load(work / "actions.npy")
    for number, task in enumerate(setup["tasks"]):
        size = setup["size"]
        env = OffScreenRenderEnv(
            bddl_file_name=task["bddl"], camera_names=["agentview"], camera_heights=size, camera_widths=size
        )
        noise, env.noise = env.noise, 0
        env.seed(0)
        starts, states, images = np.load(work / f"starts-{number}.npy"), [], []
        for episode, played in enumerate(actions):
            env.reset()
            env.set_init_state(starts[episode % len(starts)])
            for step, action in enumerate(played, 1):
                before, last = np.random.get_state(), step == len(played)
                np.random.seed([0, episode, step])
                env.noise = noise if last else 0
                seen, *_ = env.step(action.tolist())
                np.random.set_state(before)
            env.noise = 0
            states.append(env.get_sim_state())
            images.append(seen["agentview_image"])
        env.close()
        np.savez(work / f"{number}.npz", states=states, pictures=images, told=env_language(task))


def env_language(task: dict) -> str:
    """Return the instruction as its own parser reads it."""
    from liberoplus.liberoplus.envs import bddl_utils

    return bddl_utils.get_problem_info(task["file"])["language_instruction"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
