"""LIBERO's suites, as `libero.libero.benchmark` has them. Init states are read without torch."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fast_libero import startup
from fast_libero.initstates import read_init_states

startup.prepare()

with startup.later("torch"):  # LIBERO's module imports it for its own `get_task_init_states` alone
    from libero.libero import benchmark as _own
    from libero.libero import get_libero_path

__all__ = ["Benchmark", "Task", "get_benchmark", "get_benchmark_dict", "get_libero_path"]

Benchmark, Task = _own.Benchmark, _own.Task


def get_benchmark_dict(help: bool = False) -> dict[str, type]:
    """Return LIBERO's suites by name, in lower case; with `help`, print the names too."""
    return {name: _safe(suite) for name, suite in _own.get_benchmark_dict(help).items()}


def get_benchmark(benchmark_name: str) -> type:
    """Return the class of a suite. Raises ValueError with the known names if there is no such suite."""
    suites = get_benchmark_dict()
    if benchmark_name.lower() not in suites:
        raise ValueError(f"suite {benchmark_name!r} not found; known: {', '.join(suites)}")
    return suites[benchmark_name.lower()]


@cache
def _safe(suite: type) -> type:
    def get_task_init_states(self: Any, i: int) -> np.ndarray:
        """Return the init states of task `i`: float64 [episodes, 1 + nq + nv]."""
        task = self.tasks[i]
        return read_init_states(Path(get_libero_path("init_states")) / task.problem_folder / task.init_states_file)

    return type(suite.__name__, (suite,), {"get_task_init_states": get_task_init_states, "__doc__": suite.__doc__})
