"""MetaworldEnv against metaworld's own environment in gymnasium's loop, alternately in one run, bit-identical.

    ./lab bench meta_world [--quick] [--options "--task drawer-open-v3 --size 480"]

Every round plays the same actions on both: an expert's. States and images are compared after each round, and a
difference ends the run. Images are drawn on the CPU, in one thread, as one worker beside others draws them; what is
measured is the processor's time, so that other programs on the machine do not count.
"""

from __future__ import annotations

import functools
import itertools
import os
import time
from pathlib import Path

import numpy as np

from bench.common import figure, flags, interleaved

ENVIRONMENT = "metaworld"  # where `./lab bench meta_world` runs it
STEPS = 10  # of a round


class Stock:
    """The package's environment, driven as LeRobot's adapter drives it: step, render, turn."""

    def __init__(self, task, vector, size, draws):
        from metaworld import _encode_task
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS

        kind = ALL_V3_ENVIRONMENTS[task.name]
        self.env = kind(render_mode="rgb_array", camera_name="corner2", width=size, height=size)
        self.env.model.cam_pos[2] = [0.75, 0.075, 0.7]
        task_data = {"env_cls": kind, "rand_vec": vector, "partially_observable": False}
        self.env.set_task(_encode_task(task.name, task_data))
        self.draws, self.image = draws, None

    def reset(self):
        self.env.reset()

    def play(self, actions):
        for viewer in self.env.mujoco_renderer._viewers.values():
            viewer.make_context_current()  # it takes for granted that it is, and we draw in the same process
        for action in actions:
            self.env.step(action)
            if self.draws:
                self.image = np.flip(self.env.render(), (0, 1)).copy()

    def pose(self):
        return self.env.data.qpos.copy()


class Lab:
    """The lab's environment, drawn as a worker draws it: for the policy, the right way up."""

    def __init__(self, make, task, vector, size, draws):
        from services.metaworld.profiles import PROFILES
        from vla_evaluation.pictures import images

        self.env, self.vector, self.draws, self.image = make(size), vector, draws, None
        self.env.load_task(task, 0)
        self.upright = images.upright
        assert PROFILES["lerobot"].upright

    def reset(self):
        self.env.reset(0, self.vector)

    def play(self, actions):
        for action in actions:
            self.env.step(action)
            if self.draws:
                self.image = self.upright(self.env.render("corner2"))

    def pose(self):
        return self.env._data.qpos.copy()


def expert_actions(make, task, vector, count):
    """Return the expert's actions, float32 [count, 4]."""
    env, actions = make(64), []
    from services.metaworld.oracle import OraclePolicy  # imports MuJoCo: only after the renderer is selected
    from vla_contract import Observation

    policy = OraclePolicy()
    env.load_task(task, 0)
    env.reset(0, vector)
    for step in range(count):
        observation = Observation({}, None, task.instruction, "bench", step, privileged=env.privileged(False))
        actions.append(policy.act([observation])[0].actions[0])
        env.step(actions[-1])
    return np.array(actions)


def main() -> int:
    """Time steps alone, steps with images, and resets; both sides must be bit-identical."""
    parser = flags(__doc__, "fewer rounds")
    parser.add_argument("--task", default="drawer-open-v3")
    parser.add_argument("--size", type=int, default=480)
    options = parser.parse_args()
    os.environ["LP_NUM_THREADS"] = "0"
    from services.metaworld.benchmark import BENCHMARK

    def make(size):
        return BENCHMARK.make_env(Path(), Path(), (), size, "cpu")

    task = next(task for task in BENCHMARK.tasks("metaworld_mt50") if task.name == options.task)
    vector = BENCHMARK.init_states(task)[0]
    actions = expert_actions(make, task, vector, 10 * STEPS)
    rounds = 10 if options.quick else 40
    for draws, title in ((False, "a step alone"), (True, f"step and image of {options.size} pixels")):
        # The lab is first: it makes its GL context current for each image; the other assumes that its own is current.
        sides = {"ours": Lab(make, task, vector, options.size, draws)}
        sides["gymnasium"] = Stock(task, vector, options.size, draws)
        starts = {name: itertools.cycle(range(0, len(actions), STEPS)) for name in sides}

        def play(name, sides=sides, starts=starts):
            start = next(starts[name])
            if start == 0:
                sides[name].reset()
            sides[name].play(actions[start : start + STEPS])

        calls = {name: functools.partial(play, name) for name in sides}
        count = rounds if draws else 10 * rounds
        seconds = interleaved(calls, count, title, clock=time.process_time, calls=STEPS)
        lab, stock = sides.values()
        assert np.array_equal(lab.pose(), stock.pose()), "states differ"
        assert not draws or np.array_equal(lab.image, stock.image), "images differ"
    interleaved({"gymnasium": stock.reset, "ours": lab.reset}, rounds, "reset", clock=time.process_time)
    ratio = seconds.ratio("gymnasium", "ours")
    return 0 if figure("metaworld_step_and_picture", ratio, "x", ">=1", quick=True) else 1


if __name__ == "__main__":
    raise SystemExit(main())
