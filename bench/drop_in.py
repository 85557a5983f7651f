"""fast_libero in the place of LIBERO, in the loops of three evaluation programs, with equal states and images.

    ./lab bench drop_in [--quick] [--options "--assets kit|official|DIR --suites libero_goal,libero_10 --steps 100"]

An episode is a reset, `set_init_state`, ten steps of waiting and --steps actions (a wandering arm). The loops differ in
which images they read: openpi's reads both after the wait, LeRobot's both at every step, OpenVLA's agentview. All sides
execute the same actions in turns in one process; a difference of any state or image read ends the run. Before that two
Gymnasium environments step in one process and in two, by the clock, unless --processor-time is set: on a machine that
does other work this says nothing.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.common import Timings, figure, flags, interleaved
from bench.sim import smooth_actions
from services.libero import assets
from services.libero.simulator import runtime, suites
from vla_common.volume import Volume

WAIT, WAIT_ACTION = 10, [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0]
AGENT, WRIST = "agentview_image", "robot0_eye_in_hand_image"
LOOPS = {  # pixels, images read at a step, whether they are read while waiting too
    "openpi": (256, (AGENT, WRIST), False),
    "lerobot": (360, (AGENT, WRIST), True),
    "openvla": (256, (AGENT,), False),
}
SUITES = "libero_spatial,libero_object,libero_goal,libero_10"


class Loop:
    """An evaluation program's episodes of one task. `reads` are the images of a step, `waiting` whether also then."""

    def __init__(
        self, env_class: Any, task: suites.Task, size: int, reads: tuple[str, ...], waiting: bool, **options: Any
    ):
        self.env = env_class(bddl_file_name=str(task.bddl_path), camera_heights=size, camera_widths=size, **options)
        self.reads, self.waiting, self.starts = reads, waiting, suites.init_states(task)
        self.episode = 0
        self.seen: list[str] = []

    def play(self, actions: list[list[float]]) -> None:
        context = getattr(self.env.sim._render_context_offscreen, "gl_ctx", None)
        if context is not None:  # the stock environment takes for granted that its context is the current one
            context.make_current()
        digest = hashlib.sha256()
        self.env.seed(self.episode)  # sides share numpy's global generator
        self.env.reset()
        observation = self.env.set_init_state(self.starts[self.episode % len(self.starts)])
        for number, action in enumerate([WAIT_ACTION] * WAIT + actions):
            if self.waiting or number >= WAIT:
                for name in self.reads:
                    digest.update(observation[name].tobytes())
                digest.update(observation["robot0_eef_pos"].tobytes())
            observation, *_ = self.env.step(action)
            digest.update(self.env.get_sim_state().tobytes())
        self.episode += 1
        self.seen.append(digest.hexdigest())


def make_sides(task: suites.Task, name: str) -> dict[str, Loop]:
    """Return a loop's sides: LIBERO, fast_libero, and the latter with lazy images."""
    from libero.libero.envs import OffScreenRenderEnv as Stock

    from fast_libero import OffScreenRenderEnv as Fast

    sides = {"stock": Loop(Stock, task, *LOOPS[name]), "fast": Loop(Fast, task, *LOOPS[name])}
    return {**sides, "lazy": Loop(Fast, task, *LOOPS[name], lazy_images=True)}


def measure(task: suites.Task, name: str, episodes: int, actions: list[list[float]], clock: Any) -> tuple[Timings, int]:
    """Return the seconds per episode of each side of one loop, and how many episodes were compared."""
    sides = make_sides(task, name)
    played = {side: (lambda loop=loop: loop.play(actions)) for side, loop in sides.items()}
    seconds = interleaved(played, episodes, f"{name}, {task.suite}: an episode", warmup=0, clock=clock)
    first, *others = (loop.seen for loop in sides.values())
    assert all(other == first for other in others), f"{name}, {task.name}: states or images differ"
    for loop in sides.values():
        loop.env.close()
    return seconds, len(first)


def measure_vectorised(suite: str, task: int, steps: int, rounds: int) -> float:
    """Return how much faster two environments step in two processes than in one."""
    import gymnasium

    import fast_libero.gym  # noqa: F401  registers the ids

    modes = ("async", "sync")  # processes start before this one has a GL context
    envs = {
        mode: gymnasium.make_vec(
            f"fast_libero/{suite}-v0", num_envs=2, vectorization_mode=mode, task=task, max_episode_steps=2**31
        )
        for mode in modes
    }
    for env in envs.values():
        env.reset(seed=0)
    actions = np.repeat(np.array(smooth_actions(steps), np.float32)[:, None], 2, axis=1)
    sides = {mode: (lambda env=envs[mode]: [env.step(action) for action in actions]) for mode in ("sync", "async")}
    seconds = interleaved(sides, rounds, f"{suite}, two environments: {steps} steps of each")
    for env in envs.values():
        env.close()
    return seconds.ratio("sync", "async")


def main() -> None:
    parser = flags(__doc__ or "", "one episode of 20 steps per loop and suite")
    parser.add_argument("--assets", help="kit, official or a directory; default: as in an evaluation")
    parser.add_argument("--suites", default=SUITES, help="names, separated by commas")
    parser.add_argument("--loops", default=",".join(LOOPS), help="names, separated by commas")
    parser.add_argument("--steps", type=int, default=100, help="actions of an episode")
    parser.add_argument("--episodes", type=int, default=4, help="per loop and suite")
    parser.add_argument("--task", type=int, default=0, help="index of each suite's task")
    parser.add_argument("--processor-time", action="store_true", help="for a machine that does other work")
    args = parser.parse_args()
    episodes, steps = (1, 20) if args.quick else (args.episodes, args.steps)
    clock, source = (
        time.process_time if args.processor_time else time.perf_counter,
        assets.resolve(args.assets, Volume().root),
    )
    with tempfile.TemporaryDirectory() as work:
        runtime.configure(source.path, Path(work), "cpu")
        print(f"assets: {source.kind}   {steps} actions an episode")
        if not args.processor_time:  # first: no process may be forked while llvmpipe has threads
            suite = args.suites.split(",")[0]
            ratio = measure_vectorised(suite, args.task, steps, episodes)
            figure("drop_in_two_processes", ratio, "x", ">=1.8" if source.kind == "kit" else ">=1.5")
        compared = 0
        for name in args.loops.split(","):
            ratios: dict[str, list[float]] = {"fast": [], "lazy": []}
            for suite in args.suites.split(","):
                task = suites.load_suite(suite).tasks[args.task]
                seconds, count = measure(task, name, episodes, smooth_actions(steps), clock)
                compared += count
                for side, values in ratios.items():
                    values.append(seconds.ratio("stock", side))
                hourly = ", ".join(f"{side} {3600e3 / seconds.ms(side):.0f}" for side in seconds)
                print(f"  episodes an hour: {hourly}")
            targets = {"fast": ">=2" if name == "openvla" else ">=2.4", "lazy": ">=3" if name == "openvla" else "none"}
            for side, values in ratios.items():
                figure(f"drop_in_{name}_{side}", float(np.mean(values)), "x", targets[side])
        figure("drop_in_equal_episodes", compared, "", ">=40")


if __name__ == "__main__":
    main()
