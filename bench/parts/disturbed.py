"""What the benches of suites that disturb LIBERO's share: every task built, and two episodes of a wandering arm."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np

from services.libero.assets.check import problems
from services.libero.simulator import suites

EPISODES, STEPS = 2, 12

Ends = list[tuple[np.ndarray, np.ndarray]]  # state and picture after each episode


def build_all(env, name: str, tasks: Iterable[suites.Task]) -> tuple[int, int]:
    """Returns how many tasks there are and how many of them were built and started; prints a line for the suite."""
    count, started, begin = 0, 0, time.perf_counter()
    for task in tasks:
        count += 1
        try:
            found = problems(env, task)
        except Exception as error:  # what it is decides the figure, not whether the others are looked at
            print(f"  {name} {task.index}: {type(error).__name__}: {error}", flush=True)
            continue
        started += 1
        if found:
            print(f"  {name} {task.index} starts, but {'; '.join(found)}", flush=True)
    print(f"{name}: {count} tasks in {time.perf_counter() - begin:.0f} s", flush=True)
    return count, started


def actions() -> np.ndarray:
    """Returns a wandering arm's actions [EPISODES, STEPS, 7]."""
    drawn = np.random.default_rng(0).uniform(-0.6, 0.6, (EPISODES, STEPS, 7))
    drawn[..., 6] = np.sign(drawn[..., 6])
    return drawn


def ours(env, task: suites.Task, camera: str = "agentview") -> Ends:
    """Returns state and picture, as a policy gets it, after each episode; a task with one start has it in both."""
    env.load_task(task)
    starts, seen = suites.init_states(task), []
    for episode, played in enumerate(actions()):
        env.reset(episode, starts[episode % len(starts)])
        for action in played:
            env.step(action)
        seen.append((env.sim_state(), env.sense(camera, env.render(camera))))
    return seen


def is_equal(task: suites.Task, got: Ends, expected: Sequence[tuple[np.ndarray, np.ndarray]]) -> bool:
    """Returns whether two environments ended in the same bits; prints a line."""
    pairs = list(zip(got, expected, strict=True))
    states = all(np.array_equal(a[0], b[0]) for a, b in pairs)
    pixels = max(int(np.abs(a[1].astype(int) - b[1]).max()) for a, b in pairs)
    print(
        f"{task.suite} {task.index}: states {'equal' if states else 'DIFFER'}, pixels differ by {pixels}",
        flush=True,
    )
    return states and pixels == 0
