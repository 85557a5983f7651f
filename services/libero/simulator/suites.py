"""LIBERO's suites and tasks as data, read from the installed package without importing it (no torch, no prompt).

Tasks come in the order of LIBERO's `benchmark` module: its task order 0 for the suites of ten, its task map for
libero_90. Instructions follow the same module's rule: the file name, words apart, without the scene's prefix.
LIBERO-PRO's suites, which disturb these, are `pro`'s, LIBERO-plus's `plus`'s.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from services.libero.simulator import plus, pro
from vla_contract.protocol.errors import did_you_mean

if TYPE_CHECKING:
    import numpy as np

SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")
VARIANTS = {**pro.VARIANTS, **plus.VARIANTS}
BASES = {name: one.base for name, one in VARIANTS.items()}  # a suite that disturbs another → that one
EVERY = (*SUITES, *BASES)
CAMERAS = (  # what LIBERO's scenes define; agentview and robot0_eye_in_hand are what policies are trained on
    "agentview",
    "robot0_eye_in_hand",
    "frontview",
    "birdview",
    "sideview",
    "galleryview",
    "robot0_robotview",
)
TRIALS = dict.fromkeys(plus.VARIANTS, plus.TRIALS)  # episodes of a task where that is not the profile's affair


@dataclass(frozen=True)
class Task:
    """One task of a suite. `index` is its place in LIBERO's order; paths point into the installed package.

    `kind` is how LIBERO-PRO or LIBERO-plus disturbs it, empty in LIBERO's own suites. A task without init states starts
    where LIBERO's placement puts things, its scene moved to the living room. `level` is LIBERO-plus's difficulty, 1 to
    5, 0 where none is known; `disturbance` is what of it no file says, None in any other suite.
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
        """Returns the task's definition as LIBERO can read it. Raises ValueError where its file is missing."""
        text = self.written()
        if self.disturbance is not None:
            return plus.plain(text)
        return pro.in_living_room(text) if self.kind == pro.DRAWN else text

    def written(self) -> str:
        """Returns what the task's file says. Raises ValueError where it is missing."""
        try:
            return self.bddl_path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ValueError(
                f"task file {self.bddl_path} is missing; make the environment again: `./lab env libero`"
            ) from None


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
    """Returns the suite called `name`. Raises ValueError, with the nearest name, when there is none, or none here."""
    if name not in EVERY:
        raise ValueError(f"suite {name!r} not found{did_you_mean(name, EVERY)}")
    if name in plus.VARIANTS:
        return Suite(name, tuple(_plus(plus.VARIANTS[name])))
    if name in pro.VARIANTS:
        return Suite(name, tuple(_disturbed(pro.VARIANTS[name])))
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


def _disturbed(variant: pro.Variant) -> Iterator[Task]:
    """Yields the tasks of a suite of LIBERO-PRO in their base's order; of the one of all kinds, kind by kind."""
    base = load_suite(variant.base).tasks
    if variant.kind:
        of_kind = [task for one in base if (task := _of_kind(one, variant)) is not None]
        yield from (replace(task, index=index) for index, task in enumerate(of_kind))
        return
    every = [replace(task, kind=pro.BASE) for task in base]
    for suffix in pro.KINDS.values():
        every += [replace(task, name=f"{task.name}_{suffix}") for task in load_suite(f"{variant.base}_{suffix}").tasks]
    yield from (replace(task, suite=variant.name, index=index) for index, task in enumerate(every))


def _of_kind(base: Task, variant: pro.Variant) -> Task | None:
    """Returns a task disturbed in one way; None where nothing of it would change."""
    if variant.kind == pro.DRAWN:
        bddl, states = base.bddl_path, None
        if pro.table_of(base.bddl()) == pro.LIVING_ROOM:
            return None
    else:
        bddl, states = pro.files(variant.name, base.name)
    told = pro.language(bddl.read_text(encoding="utf-8"))
    return replace(
        base, suite=variant.name, instruction=told, bddl_path=bddl, init_states_path=states, kind=variant.kind
    )


def _plus(variant: pro.Variant) -> Iterator[Task]:
    """Yields the tasks of a suite of LIBERO-plus in its own order."""
    levels = plus.levels()
    chosen = [one for one in plus.listed(variant.base) if variant.kind in ("", one.kind)]
    for index, one in enumerate(chosen):
        bddl = plus.file("bddl_files", variant.base, f"{one.bddl}.bddl")
        yield Task(
            suite=variant.name,
            index=index,
            name=one.name,
            instruction=_told(bddl),
            bddl_path=bddl,
            init_states_path=plus.file("init_files", f"{one.states}.pruned_init"),
            kind=one.kind,
            level=levels.get(one.name, 0),
            disturbance=one.disturbance,
        )


@cache
def _told(bddl: Path) -> str:
    """Returns the instruction that a file holds, read once: hundreds of LIBERO-plus's tasks share one."""
    return pro.language(bddl.read_text(encoding="utf-8"))


def init_states(task: Task) -> np.ndarray:
    """Returns the task's official init states: float64 [50, 1 + nq + nv]; episode k starts from row k. LIBERO-plus has
    one where it has moved or added things.

    Float64 [50, 0] for a task without any: its starts are the placement's. Raises ValueError when the file is missing
    or holds anything but an array.
    """
    import numpy as np  # here, for `./lab` imports this module and does not have it

    from services.libero.simulator.initstates import read_init_states

    if task.init_states_path is None:
        return np.empty((pro.EPISODES, 0))
    return read_init_states(task.init_states_path, single=task.disturbance is not None)
