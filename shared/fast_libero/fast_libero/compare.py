"""Play one episode with stock LIBERO and with fast_libero, and compare every state, observation and pixel.

python -m fast_libero.compare libero_goal --task 3 --steps 50
"""

from __future__ import annotations

import argparse
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

PACKAGES = ("hf-libero", "robosuite", "mujoco", "numpy")


def play(env_class: type, bddl: Path, start: np.ndarray, steps: int, seed: int) -> list[dict[str, Any]]:
    """Return the observations, with the simulator's state, after the reset, the init state, and random actions."""
    env = env_class(bddl_file_name=str(bddl), camera_heights=256, camera_widths=256)
    env.seed(seed)
    rng, seen = np.random.RandomState(seed), []
    seen.append({**env.reset(), "state": env.get_sim_state()})
    seen.append({**env.set_init_state(start), "state": env.get_sim_state()})
    for action in rng.uniform(-1, 1, (steps, 7)):
        observation, reward, done, _ = env.step(action)
        seen.append({**observation, "state": env.get_sim_state(), "reward": reward, "done": done})
    env.close()
    return seen


def difference(stock: list[dict[str, Any]], fast: list[dict[str, Any]]) -> str:
    """Return a sentence about the first difference, "" without one."""
    for number, (one, other) in enumerate(zip(stock, fast, strict=True)):
        if list(one) != list(other):
            return f"observation {number} has other keys: {sorted(set(one) ^ set(other)) or 'in another order'}"
        for name, value in one.items():
            if not np.array_equal(value, other[name]):
                apart = np.abs(np.asarray(value, float) - np.asarray(other[name], float))
                return (
                    f"observation {number}: {name} differs in {np.count_nonzero(apart)} numbers, at most {apart.max()}"
                )
    return ""


def main() -> int:
    """Return 0 if all is equal, 1 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", help="such as libero_goal")
    parser.add_argument("--task", type=int, default=0)
    parser.add_argument("--init-state", type=int, default=0)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    from fast_libero import benchmark, envs

    suite = benchmark.get_benchmark(args.suite)()
    bddl, start = Path(suite.get_task_bddl_file_path(args.task)), suite.get_task_init_states(args.task)[args.init_state]
    stock = play(envs.env_wrapper.OffScreenRenderEnv, bddl, start, args.steps, args.seed)
    found = difference(stock, play(envs.OffScreenRenderEnv, bddl, start, args.steps, args.seed))
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    print(f"{args.suite} task {args.task}, {args.steps} steps; Python {platform.python_version()}, {versions}")
    print(found or f"equal: {len(stock)} observations")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
