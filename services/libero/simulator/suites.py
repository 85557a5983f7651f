"""LIBERO's suites and tasks as data, read from the installed package without importing it (no torch, no prompt).

Tasks come in the order of LIBERO's `benchmark` module: its task order 0 for the suites of ten, its task map for
libero_90. Instructions follow the same module's rule: the file name, words apart, without the scene's prefix.
"""

import importlib.util
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from services.libero.simulator.initstates import read_init_states
from vla_contract.protocol.errors import did_you_mean

SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")


@dataclass(frozen=True)
class Task:
    """One task of a suite. `index` is its place in LIBERO's order; paths point into the installed package."""

    suite: str
    index: int
    name: str
    instruction: str
    bddl_path: Path
    init_states_path: Path


@dataclass(frozen=True)
class Suite:
    name: str
    tasks: tuple[Task, ...]


def package_root() -> Path:
    """Returns the folder of LIBERO's inner package (`libero/libero`). Raises ImportError when it is not installed."""
    spec = importlib.util.find_spec("libero")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("hf-libero is not installed here; install images/libero/requirements.lock")
    root = Path(next(iter(spec.submodule_search_locations))) / "libero"
    if not (root / "bddl_files").is_dir():
        raise ImportError(f"{root} holds no bddl_files: LIBERO was installed empty; install hf-libero's wheel")
    return root


@cache
def _task_map() -> dict[str, list[str]]:
    """Returns LIBERO's map from suite to task names, executed as a lone file: its package would import torch."""
    path = package_root() / "benchmark" / "libero_suite_task_map.py"
    spec = importlib.util.spec_from_file_location("_libero_suite_task_map", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.libero_task_map


def instruction_of(name: str) -> str:
    """Returns the sentence that LIBERO's benchmark gives a policy for the task called `name`."""
    return re.sub(r"^[A-Z].*?SCENE\d+_", "", name).replace("_", " ")


@cache
def load_suite(name: str) -> Suite:
    """Returns the suite called `name`. Raises ValueError, with the nearest name, when there is none."""
    if name not in SUITES:
        raise ValueError(f"suite {name!r} not found{did_you_mean(name, SUITES)}")
    root = package_root()
    tasks = tuple(
        Task(
            suite=name,
            index=index,
            name=task,
            instruction=instruction_of(task),
            bddl_path=root / "bddl_files" / name / f"{task}.bddl",
            init_states_path=root / "init_files" / name / f"{task}.pruned_init",
        )
        for index, task in enumerate(_task_map()[name])
    )
    return Suite(name, tasks)


def init_states(task: Task) -> np.ndarray:
    """Returns the task's official init states: float64 [50, 1 + nq + nv]; episode k starts from row k.

    Raises ValueError when the file is missing or holds anything but an array.
    """
    return read_init_states(task.init_states_path)
