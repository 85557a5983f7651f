"""LiberoEnv against LIBERO's stock OffScreenRenderEnv loop, alternately in one run, with bit-identical results.

    ./lab bench sim [--quick] [--options "--assets kit|official|DIR --task libero_goal:0"]

Every round executes the same actions on all sides: a wandering arm without rendering, an oracle episode with rendering.
States (and images, if rendered) are compared afterwards, and a difference ends the run. Frames are rendered on the CPU
in one thread unless --render selects another device.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.common import figure, flags, interleaved
from services.libero import assets
from services.libero.profiles import PROFILES
from services.libero.simulator import runtime, suites
from vla_common.volume import Volume
from vla_contract import Observation

CHUNK = 8


class StockLoop:
    """LIBERO's own environment, used as in evaluation scripts."""

    def __init__(self, task, cameras):
        from libero.libero.envs import OffScreenRenderEnv

        drawn = {"camera_names": cameras} if cameras else {"use_camera_obs": False}
        self.env = OffScreenRenderEnv(
            bddl_file_name=str(task.bddl_path), camera_heights=256, camera_widths=256, **drawn
        )
        self.env.seed(0)
        self.cameras, self.seen = cameras or (), []

    def make_gl_current(self):
        """Make its GL context current: it assumes so, but LiberoEnv renders in the same process."""
        self.env.sim._render_context_offscreen.gl_ctx.make_current()

    def reset(self, init_state):
        self.make_gl_current()
        self.env.reset()
        self.observation = self.env.set_init_state(init_state)

    def play(self, actions):
        self.make_gl_current()
        for action in actions:
            self.observation, *_ = self.env.step(action)

    def state(self):
        return self.env.get_sim_state()

    def images(self):
        return {name: self.observation[f"{name}_image"] for name in self.cameras}

    def close(self):
        self.make_gl_current()
        self.env.close()


class OurLoop:
    """LiberoEnv that renders the cameras after every `draw_every` steps (0: never)."""

    def __init__(self, task, directory, draw_every, cameras=("agentview",)):
        from services.libero.simulator.env import LiberoEnv

        self.env, self.draw_every, self.cameras = LiberoEnv(directory, cameras), draw_every, cameras
        self.env.load_task(task, seed=0)
        self.state, self.close = self.env.sim_state, self.env.close
        self.episode, self.seen, self.rendered = -1, [], {}

    def reset(self, init_state):
        self.episode += 1
        self.env.reset(self.episode, init_state)

    def play(self, actions):
        for number, action in enumerate(actions, start=1):
            self.env.step(action)
            if self.draw_every and number % self.draw_every == 0:
                self.rendered = {name: self.env.render(name) for name in self.cameras}

    def images(self):
        return self.rendered


def compare(title, sides, rounds, step, calls=1):
    """Time `step(side, number)` of every side alternately and check that all results are bit-identical.

    Each side's `seen` gets a dictionary per call: the state, and the images that it has rendered.
    """
    numbers = {name: iter(range(rounds + 1)) for name in sides}
    timed = {name: lambda name=name, side=side: step(side, next(numbers[name])) for name, side in sides.items()}
    seconds = interleaved(timed, rounds, title, calls=calls)
    first, *rest = sides.values()
    for other in rest:
        assert len(first.seen) == len(other.seen) > 0
        for number, (expected, got) in enumerate(zip(first.seen, other.seen, strict=True)):
            for name, value in got.items():
                assert np.array_equal(expected[name], value), f"round {number}: {name} differs"
    for side in sides.values():
        side.seen.clear()
    return seconds


def smooth_actions(count: int, seed: int = 0) -> Any:
    """Return float lists [count][7]: a wandering arm that reaches down, closes and opens."""
    rng, time = np.random.RandomState(seed), np.arange(count)[:, None]
    actions = 0.5 * np.sin(time / 9 + np.arange(7)) + 0.2 * rng.randn(count, 7)
    actions[:, 2] -= 0.3
    actions[:, 6] = np.where((time[:, 0] // 20) % 2, 1.0, -1.0)
    return np.clip(actions, -1, 1).tolist()


def oracle_actions(task, directory, init_state, count):
    """Return float lists [count][7]: the protocol's wait steps, then the oracle's actions, then no motion."""
    from services.libero.oracle.policy import OraclePolicy
    from services.libero.simulator.env import LiberoEnv
    from services.libero.simulator.privileged import observe

    profile, policy, env = PROFILES["openvla"], OraclePolicy(), LiberoEnv(directory)
    actions = [list(profile.wait_action)] * profile.wait_steps
    env.load_task(task, seed=0)
    env.reset(0, init_state)
    done = [env.step(action) for action in actions][-1]
    for step in range(count - len(actions)):
        state = observe(env.domain, static=step == 0)
        (answer,) = policy.act([Observation({}, None, env.instruction, "bench", step, privileged=state)])
        if done or isinstance(answer, Exception):
            break
        actions.append(answer.actions[0].tolist())
        done = env.step(actions[-1])
    env.close()
    return actions + [[0.0] * 6 + actions[-1][6:]] * (count - len(actions))


def run(task, init_states, source, quick):
    """Time resets and steps without cameras, then steps with images; print the figures."""

    def reset(side, number):
        side.reset(init_states[number])
        side.seen.append({"state": side.state()})

    def play(side, number):
        side.play(actions[number * CHUNK : (number + 1) * CHUNK])
        side.seen.append({"state": side.state(), **side.images()})

    sides = {"stock": StockLoop(task, None), "ours": OurLoop(task, source.path, 0, ())}
    resets = compare("reset and init state", sides, 2 if quick else 6, reset)
    rounds = 15 if quick else 40
    actions = smooth_actions((rounds + 1) * CHUNK)
    steps = compare("one step, nothing rendered", sides, rounds, play, CHUNK)
    for side in sides.values():
        side.close()

    two, stock = ["agentview", "robot0_eye_in_hand"], "stock, two cameras"
    sides = {
        stock: StockLoop(task, two),
        "ours, two cameras": OurLoop(task, source.path, 1, tuple(two)),
        "ours, agentview": OurLoop(task, source.path, 1),
        "ours, chunks": OurLoop(task, source.path, CHUNK),
    }
    for side in sides.values():
        side.reset(init_states[0])
    rounds = 4 if quick else 12
    actions = oracle_actions(task, source.path, init_states[0], (rounds + 1) * CHUNK)
    observed = compare(f"one step with its observation; chunks of {CHUNK}", sides, rounds, play, CHUNK)
    for side in sides.values():
        side.close()
    official = source.kind == "official"
    single_camera, two_cameras, chunks = (">=4", ">=3", ">=6") if official else (">=1.7", ">=1.7", ">=4")
    figure("sim_step_speedup", steps.ratio("stock", "ours"), "x", ">=1.35", quick=True)
    figure("sim_observation_speedup", observed.ratio(stock, "ours, agentview"), "x", single_camera, quick=True)
    figure("sim_two_cameras_speedup", observed.ratio(stock, "ours, two cameras"), "x", two_cameras, quick=True)
    figure("sim_chunk8_speedup", observed.ratio(stock, "ours, chunks"), "x", chunks, quick=True)
    figure("sim_reset_speedup", resets.ratio("stock", "ours"), "x", ">=4", quick=True)


def main():
    parser = flags(__doc__, "fewer rounds: under a minute")
    parser.add_argument("--assets", help="kit, official or a directory; default: as in an evaluation")
    parser.add_argument("--task", default="libero_goal:0", help="suite:index")
    parser.add_argument("--render", default="cpu", choices=("cpu", "gpu", "auto"))
    args = parser.parse_args()
    suite, index = args.task.split(":")
    task = suites.load_suite(suite).tasks[int(index)]
    source = assets.resolve(args.assets, Volume().root)
    with tempfile.TemporaryDirectory() as work:
        runtime.configure(source.path, Path(work), args.render)
        print(f"assets: {source.kind}   task: {task.suite}/{task.name}")
        run(task, suites.init_states(task), source, args.quick)


if __name__ == "__main__":
    main()
