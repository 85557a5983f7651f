"""Shared by the benchmarks of perturbed suites: build every task, and run two episodes of a wandering arm."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bench.common import figure, flags
from services.libero.assets.check import problems
from services.libero.simulator import suites

EPISODES, STEPS = 2, 12

Ends = list[tuple[np.ndarray, np.ndarray]]  # state and image after each episode


def parse_options(description: str, names: Sequence[str]) -> argparse.Namespace:
    """Return the command line's options; --quick builds every 200th task and compares five suites."""
    parser = flags(description, "every 200th task, and five suites compared")
    parser.add_argument("--assets", help="kit, official or a directory")
    parser.add_argument("--suites", nargs="+", default=names, choices=names, metavar="SUITE")
    parser.add_argument("--every", type=int, default=1, help="build only every so many tasks")
    options = parser.parse_args()
    options.compared = options.suites
    if options.quick:
        options.every, options.compared = 200, options.suites[:: max(1, len(options.suites) // 5)]
    return options


def run_stock(script: Path, work: Path, *python_path: Path) -> None:
    """Run the benchmark's own environment in a child process, which writes its arrays into `work`."""
    np.save(work / "actions.npy", actions())
    variables = {**os.environ, "LIBERO_CONFIG_PATH": str(work), "PYTHONPATH": ":".join(map(str, python_path))}
    subprocess.run([sys.executable, str(script), str(work)], check=True, env=variables, timeout=1800)


def measure(
    label: str, options: argparse.Namespace, directory: Path, size: int,
    expected: Sequence[tuple[suites.Task, Ends]], is_complete: Callable[[suites.Task], bool],
) -> int:  # fmt: skip
    """Compare the sampled tasks, build and start all complete ones, print the figures; return 1 if one misses."""
    from services.libero.simulator.env import LiberoEnv

    env = LiberoEnv(directory, ("agentview",), size)
    equal = sum(is_equal(task, final_states(env, task), ends) for task, ends in expected)
    count = started = incomplete = 0
    for name in options.suites:
        for task in suites.load_suite(name).tasks[:: options.every]:
            if not is_complete(task):
                incomplete += 1
                continue
            count += 1
            try:
                faults = problems(env, task)
            except Exception as error:  # counts as not started; continue with the other tasks
                print(f"  {name} {task.index}: {type(error).__name__}: {error}", flush=True)
                continue
            started += 1
            if faults:
                print(f"  {name} {task.index} starts, but {'; '.join(faults)}", flush=True)
        print(f"{name}: {started} of {count} tasks so far", flush=True)
    env.close()
    print(f"{incomplete} tasks were skipped: the asset directory lacks their files")
    total = len(expected)
    has_started = figure(f"{label}_tasks_that_start", started, f"of {count} tasks", f">={count}", quick=True)
    is_same = figure(f"{label}_suites_equal_to_stock", equal, f"of {total} suites", f">={total}", quick=True)
    return 0 if has_started and is_same else 1


def actions() -> np.ndarray:
    """Return a wandering arm's actions [EPISODES, STEPS, 7]."""
    sampled = np.random.default_rng(0).uniform(-0.6, 0.6, (EPISODES, STEPS, 7))
    sampled[..., 6] = np.sign(sampled[..., 6])
    return sampled


def final_states(env, task: suites.Task, camera: str = "agentview") -> Ends:
    """Return state and image (as sent to a policy) after each episode; a task with one start uses it for both."""
    env.load_task(task)
    starts, seen = suites.init_states(task), []
    for episode, played in enumerate(actions()):
        env.reset(episode, starts[episode % len(starts)])
        for action in played:
            env.step(action)
        seen.append((env.sim_state(), env.sense(camera, env.render(camera))))
    return seen


def is_equal(task: suites.Task, got: Ends, expected: Ends) -> bool:
    """Return whether the final states and images are bit-identical; print a line."""
    pairs = list(zip(got, expected, strict=True))
    states = all(np.array_equal(a[0], b[0]) for a, b in pairs)
    pixels = max(int(np.abs(a[1].astype(int) - b[1]).max()) for a, b in pairs)
    print(
        f"{task.suite} {task.index}: states {'equal' if states else 'DIFFER'}, pixels differ by {pixels}",
        flush=True,
    )
    return states and pixels == 0
