"""LIBERO's suites and tasks as data, read from the installed package without importing it (no torch, no prompt).

Tasks come in the order of LIBERO's `benchmark` module: its task order 0 for the suites of ten, its task map for
libero_90. Instructions follow the same module's rule: the file name with spaces, without the scene's prefix. The
perturbed suites of LIBERO-PRO and LIBERO-plus are in `pro` and `plus`.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fast_libero.startup import package_root
from services.libero.simulator import plus, pro, shuffled
from vla_contract.protocol.errors import did_you_mean

if TYPE_CHECKING:
    import numpy as np

SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")
VARIANTS = {**shuffled.VARIANTS, **pro.VARIANTS, **plus.VARIANTS}
BASES = {name: variant.base for name, variant in VARIANTS.items()}  # perturbed suite → its base
EVERY = (*SUITES, *BASES)
CAMERAS = (  # of LIBERO's scenes; policies are trained on agentview and robot0_eye_in_hand
    "agentview",
    "robot0_eye_in_hand",
    "frontview",
    "birdview",
    "sideview",
    "galleryview",
    "robot0_robotview",
)
TRIALS = dict.fromkeys(plus.VARIANTS, plus.TRIALS)  # episodes per task, for suites that override the profile


@dataclass(frozen=True)
class Task:
    """One task of a suite. `index` is its position in LIBERO's order; paths point into the installed package.

    `kind` is the perturbation of LIBERO-PRO or LIBERO-plus, empty in LIBERO's own suites. A task without init states
    starts where LIBERO's placement puts the objects, in the living room. `level` is LIBERO-plus's difficulty, 1 to 5,
    or 0 if unknown. `disturbance` is the part of LIBERO-plus's perturbation that is in no file; None in other suites.
    """

    suite: str
    index: int
    name: str
    instruction: str
    bddl_path: Path
    init_states_path: Path | None
    kind: str = ""
    level: int = 0
    disturbance: plus.Disturbance | None = None

    def bddl(self) -> str:
        """Return the task's definition for LIBERO. Raises ValueError if its file is missing."""
        text = self.written()
        if self.disturbance is not None:
            return plus.plain(text)
        return pro.in_living_room(text) if self.kind == pro.SAMPLED else text

    def written(self) -> str:
        """Return the text of the task's file. Raises ValueError if it is missing."""
        try:
            return self.bddl_path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ValueError(
                f"task file {self.bddl_path} not found; rebuild the environment with `./lab env libero`"
            ) from None


@dataclass(frozen=True)
class Suite:
    name: str
    tasks: tuple[Task, ...]


@cache
def _task_map() -> dict[str, list[str]]:
    """Return LIBERO's map from suite to task names, from the file alone: its package would import torch."""
    path = package_root() / "benchmark" / "libero_suite_task_map.py"
    spec = importlib.util.spec_from_file_location("_libero_suite_task_map", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.libero_task_map


def instruction_of(name: str) -> str:
    """Return the instruction of LIBERO's benchmark for the task `name`."""
    return re.sub(r"^[A-Z].*?SCENE\d+_", "", name).replace("_", " ")


@cache
def load_suite(name: str) -> Suite:
    """Return the suite `name`. Raises ValueError if it is unknown, with the nearest name, or its files are missing."""
    if name not in EVERY:
        raise ValueError(f"suite {name!r} not found{did_you_mean(name, EVERY)}")
    if name in plus.VARIANTS:
        return Suite(name, tuple(_plus_tasks(plus.VARIANTS[name])))
    if name in shuffled.VARIANTS:
        base = load_suite(shuffled.VARIANTS[name].base)
        kind = shuffled.KIND
        return Suite(name, tuple(replace(task, suite=name, init_states_path=None, kind=kind) for task in base.tasks))
    if name in pro.VARIANTS:
        tasks = _pro_tasks(pro.VARIANTS[name])
        return Suite(name, tuple(replace(task, suite=name, index=index) for index, task in enumerate(tasks)))
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


def _pro_tasks(variant: pro.PerturbedSuite) -> Iterator[Task]:
    """Yield the tasks of a LIBERO-PRO suite in their base's order; for the suite of all kinds, kind by kind.

    Tasks that a perturbation would not change are left out.
    """
    for task in load_suite(variant.base).tasks:
        if not variant.kind:
            yield replace(task, kind=pro.BASE)
            continue
        bddl, states = task.bddl_path, None
        if variant.kind != pro.SAMPLED:
            bddl, states = pro.files(variant.name, task.name)
        elif pro.table_of(task.bddl()) == pro.LIVING_ROOM:
            continue
        yield replace(task, instruction=_instruction(bddl), bddl_path=bddl, init_states_path=states, kind=variant.kind)
    for suffix in pro.KINDS.values() if not variant.kind else ():
        for task in load_suite(f"{variant.base}_{suffix}").tasks:
            yield replace(task, name=f"{task.name}_{suffix}")


def _plus_tasks(variant: pro.PerturbedSuite) -> Iterator[Task]:
    """Yield the tasks of a suite of LIBERO-plus in its own order."""
    levels = plus.levels()
    entries = [entry for entry in plus.listed(variant.base) if variant.kind in ("", entry.kind)]
    for index, entry in enumerate(entries):
        bddl = plus.file("bddl_files", variant.base, f"{entry.bddl}.bddl")
        yield Task(
            suite=variant.name,
            index=index,
            name=entry.name,
            instruction=_instruction(bddl),
            bddl_path=bddl,
            init_states_path=plus.file("init_files", f"{entry.states}.pruned_init"),
            kind=entry.kind,
            level=levels.get(entry.name, 0),
            disturbance=entry.disturbance,
        )


@cache
def _instruction(bddl: Path) -> str:
    """Return the instruction in a file, cached: hundreds of LIBERO-plus's tasks share one."""
    return pro.language(bddl.read_text(encoding="utf-8"))


def init_states(task: Task) -> np.ndarray:
    """Return the task's official init states: float64 [50, 1 + nq + nv]; episode k starts from row k.

    LIBERO-plus's tasks with moved or added objects have one row. A task whose starts are sampled has float64 [50, 0], a
    shuffled one [50, 3 n], the places of `shuffled.to_row`.
    Raises ValueError if the file is missing or invalid.
    """
    import numpy as np  # imported here: `./lab` imports this module without numpy

    from fast_libero.initstates import read_init_states

    if task.kind == shuffled.KIND:
        return np.array(shuffled.rows(task))
    if task.init_states_path is None:
        return np.empty((pro.EPISODES, 0))
    return read_init_states(task.init_states_path, single=task.disturbance is not None)
