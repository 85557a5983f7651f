"""The fifty variations of each task that evaluation starts from: `python -m services.metaworld.variations` writes them.

They are those of `metaworld.MT1(task, seed=42)`, the seed of metaworld's own test of its experts: vectors that place
objects and goal. A file holds them, because making them takes a simulator and a minute, and the evaluator has neither.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("variations.json")
SEED, COUNT = 42, 50


@cache
def _all() -> dict[str, list[list[float]]]:
    return json.loads(FILE.read_text())


def of(task: str) -> np.ndarray:
    """Returns a task's vectors, float64 [50, n]: n is 3 or 6, by the task."""
    return np.array(_all()[task])


def make(task: str) -> np.ndarray:
    """Returns the vectors as the package draws them, float64 [50, n]. Imports the simulator."""
    from metaworld import MT1

    benchmark = MT1(task, seed=SEED)
    env, found = benchmark.train_classes[task](), []
    for one in benchmark.train_tasks:
        env.set_task(one)
        found.append(env._last_rand_vec)
    return np.array(found)


def main() -> None:
    """Writes the file."""
    from services.metaworld.tasks import INSTRUCTIONS

    lines = [f"{json.dumps(task)}: {json.dumps(make(task).tolist())}" for task in INSTRUCTIONS]
    FILE.write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    sys.exit(main())
