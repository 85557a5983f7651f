"""`python vla_eval_server.py --log FILE [--port N]`: vla-eval's own model server, whose chunks count what it was asked.

It runs in an environment of its own, made of `vla-eval` from the package index. The log's first line is the port, then
comes a line for every time that its model was asked.
"""

import argparse
import json

import anyio
import numpy as np
from vla_eval.model_servers.predict import PredictModelServer
from vla_eval.model_servers.serve import serve_async
from vla_eval.specs import GRIPPER_CLOSE_POS, POSITION_DELTA, ROTATION_AA, STATE_EEF_POS_AA_GRIP


class Counting(PredictModelServer):
    """Answers chunks of four: the episode's step, the action's place in its chunk, zeros, and a gripper of 0.3."""

    def __init__(self, log):
        super().__init__(chunk_size=4)
        self.log = log

    def get_observation_params(self):
        return {"send_wrist_image": True, "send_state": True, "env_seed": 0}

    def get_action_spec(self):
        return {"position": POSITION_DELTA, "rotation": ROTATION_AA, "gripper": GRIPPER_CLOSE_POS}

    def get_observation_spec(self):
        return {"state": STATE_EEF_POS_AA_GRIP}

    def predict(self, obs, ctx):
        told = {
            "images": {
                name: [str(one.dtype), list(one.shape), int(one[0, 0, 0])] for name, one in obs["images"].items()
            },
            "states": [str(obs["states"].dtype), list(obs["states"].shape)],
            "sentence": obs["task_description"],
            "step": ctx.step,
        }
        self.log.write(json.dumps(told) + "\n")
        if obs["task_description"] == "break":
            raise RuntimeError("out of memory")
        actions = np.zeros((4, 7), np.float32)
        actions[:, 0], actions[:, 1], actions[:, 6] = ctx.step / 100, np.arange(4) / 10, 0.3
        return {"actions": actions}


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log")
    options = parser.parse_args()
    with open(options.log, "w", buffering=1) as log:
        async with anyio.create_task_group() as group:
            port = await group.start(serve_async, Counting(log), "127.0.0.1", options.port)
            log.write(f"{port}\n")


anyio.run(main)
