"""Shared by bench/plus.py and bench/pro.py: build every task, and run two episodes of a wandering arm on both sides."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bench.common import figure, flags, missed
from services.libero import assets
from services.libero.assets.check import problems
from services.libero.simulator import runtime, suites
from vla_common.volume import Volume

EPISODES, STEPS = 2, 12
STOCK = Path(__file__).parent / "perturbed_stock.py"
Ends = list[tuple[np.ndarray, np.ndarray]]  # state and image after each episode


def stock_ends(
    entries: Sequence[dict[str, str]], size: int, is_plus: bool, work: Path, *python_path: Path
) -> list[tuple[Ends, str]]:
    """Return each task's ends in the benchmark's own environment, in a child process, and the instruction there.

    entries: bddl, states and file of each task; work: a directory for the arrays of both processes.
    """
    np.save(work / "actions.npy", actions())
    (work / "tasks.json").write_text(json.dumps({"size": size, "plus": is_plus, "tasks": entries}))
    variables = {**os.environ, "LIBERO_CONFIG_PATH": str(work), "PYTHONPATH": ":".join(map(str, python_path))}
    subprocess.run([sys.executable, str(STOCK), str(work)], check=True, env=variables, timeout=1800)
    ends = []
    for number in range(len(entries)):
        with np.load(work / f"{number}.npz") as stored:
            ends.append((list(zip(stored["states"], stored["pictures"], strict=True)), str(stored["told"])))
    return ends


def main(
    label: str,
    description: str,
    names: Sequence[str],
    size: int,
    sample: Callable[[str, int], suites.Task],
    stock: Callable[[list[suites.Task], Path, Path], list[Ends]],
    complete: Callable[[Path, Path, list[suites.Task]], Path] = lambda source, work, tasks: source,
    is_complete: Callable[[Path, suites.Task], bool] = lambda source, task: True,
) -> int:
    """Compare a task of each suite with the benchmark's own environment, build and start all; return the exit status.

    sample: the task of a suite and its number. complete: returns a directory with all files of the compared tasks.
    is_complete: whether the asset directory has a task's files; others are not built.
    """
    parser = flags(description, "every 200th task, and five suites compared")
    parser.add_argument("--assets", help="kit, official or a directory")
    parser.add_argument("--suites", nargs="+", default=names, choices=names, metavar="SUITE")
    parser.add_argument("--every", type=int, default=1, help="build only every so many tasks")
    options = parser.parse_args()
    every = 200 if options.quick else options.every
    compared = options.suites[:: max(1, len(options.suites) // 5)] if options.quick else options.suites
    source = assets.resolve(options.assets, Volume().root)
    print(f"assets: {source.kind}")
    tasks = [sample(name, number) for number, name in enumerate(compared)]
    with tempfile.TemporaryDirectory() as work, tempfile.TemporaryDirectory() as stock_work:
        directory = complete(source.path, Path(work) / "assets", tasks)
        runtime.configure(directory, Path(work) / "ours", render="cpu")
        expected = stock(tasks, directory, Path(stock_work))
        from services.libero.simulator.env import LiberoEnv  # only after the renderer is selected

        env = LiberoEnv(directory, ("agentview",), size)
        equal = sum(is_equal(task, final_states(env, task), ends) for task, ends in zip(tasks, expected, strict=True))
        count = started = incomplete = 0
        for name in options.suites:
            for task in suites.load_suite(name).tasks[::every]:
                if not is_complete(source.path, task):
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
    figure(f"{label}_tasks_that_start", started, f"of {count} tasks", f">={count}", quick=True)
    figure(f"{label}_suites_equal_to_stock", equal, f"of {len(tasks)} suites", f">={len(tasks)}", quick=True)
    return int(bool(missed))


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
    result = f"states {'equal' if states else 'DIFFER'}, pixels differ by {pixels}"
    print(f"{task.suite} {task.index}: {result}", flush=True)
    return states and pixels == 0
