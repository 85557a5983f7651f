"""`python vla_eval_asks.py URL`: vla-eval's own runner plays two episodes of a benchmark without a simulator.

It runs in an environment of its own, made of `vla-eval` from the package index; prints what came as JSON.
"""

import json
import sys

import anyio
import numpy as np
from vla_eval.benchmarks.base import StepBenchmark, StepResult
from vla_eval.connection import Connection
from vla_eval.runners.sync_runner import SyncEpisodeRunner


class Still(StepBenchmark):
    """A world that shows the same and is solved at its seventh step; keeps the actions that it was given."""

    def __init__(self):
        super().__init__()
        self.actions = []

    def get_tasks(self):
        return [{"name": "put the bowl away", "suite": "libero_goal", "task_id": 3}]

    def reset(self, task):
        self.actions.append([])

    def step(self, action):
        self.actions[-1].append(np.asarray(action["actions"]).tolist())
        done = len(self.actions[-1]) == 7
        return StepResult(None, float(done), done, {})

    def make_obs(self, raw_obs, task):
        image = np.arange(256 * 256 * 3, dtype=np.uint32).astype(np.uint8).reshape(256, 256, 3)
        shown = {"agentview": image, "wrist": 255 - image}
        return {"images": shown, "task_description": task["name"], "states": np.linspace(0.0, 0.7, 8)}

    def check_done(self, step_result):
        return step_result.done

    def get_step_result(self, step_result):
        return {"success": step_result.done}


async def main():
    world = Still()
    async with Connection(sys.argv[1], timeout=30.0, max_retries=1) as connection:
        runner = SyncEpisodeRunner()
        (task,) = world.get_tasks()
        results = [await runner.run_episode(world, task, connection, max_steps=20) for _ in range(2)]
        try:
            await connection.act({"images": {}})
        except RuntimeError as error:
            refused = str(error)
        told = connection.server_info
    print(json.dumps({"results": results, "actions": world.actions, "refused": refused, "told": told}))


anyio.run(main)
