"""The fifty variations (start states) of each task: `python -m services.metaworld.variations` writes their file.

They are those of `metaworld.MT1(task, seed=42)`, the seed that metaworld tests its experts with: vectors with the
positions of objects and goal. They are stored because generating them takes a simulator and a minute.
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
    """Return a task's vectors, float64 [50, n]; n is 3 or 6, depending on the task."""
    return np.array(_all()[task])


def make(task: str) -> np.ndarray:
    """Sample the vectors with the package, float64 [50, n]. Imports the simulator."""
    from metaworld import MT1

    benchmark = MT1(task, seed=SEED)
    env, vectors = benchmark.train_classes[task](), []
    for variation in benchmark.train_tasks:
        env.set_task(variation)
        vectors.append(env._last_rand_vec)
    return np.array(vectors)


def main() -> None:
    """Write variations.json."""
    from services.metaworld.tasks import INSTRUCTIONS

    lines = [f"{json.dumps(task)}: {json.dumps(make(task).tolist())}" for task in INSTRUCTIONS]
    FILE.write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    sys.exit(main())
