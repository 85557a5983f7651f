"""`python peer_server.py ACTIONS.npy LOG [wrist]`: vla-eval's own model server; it answers recorded actions at once.

It runs in an environment of its own, made of `vla-eval` from the package index. The log's first line is the port, then
comes one of peer_log's for every observation.
"""

import sys
from pathlib import Path

import anyio
import numpy as np
import peer_log  # beside this script
from vla_eval.model_servers.predict import PredictModelServer
from vla_eval.model_servers.serve import serve_async
from vla_eval.specs import GRIPPER_CLOSE_POS, POSITION_DELTA, ROTATION_AA


class Recorded(PredictModelServer):
    """Answers `actions` [steps, 7] by the episode's step, the last one after their end."""

    def __init__(self, actions: np.ndarray, wrist: bool, log):
        super().__init__()
        self.actions, self.wrist, self.log = actions, wrist, log

    def get_observation_params(self):
        return {"send_wrist_image": self.wrist}

    def get_action_spec(self):
        return {"position": POSITION_DELTA, "rotation": ROTATION_AA, "gripper": GRIPPER_CLOSE_POS}

    def predict(self, obs, ctx):
        self.log.write(peer_log.line(ctx.episode_id, ctx.step, obs["images"]))
        return {"actions": self.actions[min(ctx.step, len(self.actions) - 1)]}


async def main() -> None:
    actions, log, *wrist = sys.argv[1:]
    with Path(log).open("w", buffering=1) as lines:
        async with anyio.create_task_group() as group:
            port = await group.start(serve_async, Recorded(np.load(actions), bool(wrist), lines), "127.0.0.1", 0)
            lines.write(f"{port}\n")


anyio.run(main)
