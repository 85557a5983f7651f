"""LIBERO-plus: build and start every task, and compare states and images bit by bit with its own code.

    ./lab bench plus [--quick]
        [--options "--assets kit|official|DIR --suites libero_goal_plus_camera … --every N"]

Every task whose files are in the asset directory is built, started at its first init state and stepped 60 times
(`services.libero.assets.check`, which also says what does not rest); how many are left out for want of files is said.
Of every suite one task is then played by LIBERO-plus's own environment, in a process of its own, and by ours: two
episodes of a wandering arm, states and agentview, as the policy gets it, compared after each. What those tasks lack in
the directory is made first: bench/parts/plus_files.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from bench.parts import plus_files
from bench.parts.perturbed import Ends, main, stock_ends
from services.libero.assets import plus as plus_assets
from services.libero.simulator import plus, suites

SUITES = tuple(name for name, variant in plus.VARIANTS.items() if variant.kind)
SIZE = 224  # the wheel's glass blur is made for 224 pixels


def sample(name: str, number: int) -> suites.Task:
    """Return the task of a suite that is compared; of noise none that its own code draws by ImageMagick."""
    tasks = [task for task in suites.load_suite(name).tasks if task.disturbance.noise not in range(1, 11)]
    return tasks[(SUITES.index(name) * 97 + 31) % len(tasks)]


def stock(tasks: list[suites.Task], asset_directory: Path, work: Path) -> list[Ends]:
    """Return states and images of the tasks from LIBERO-plus's own environment."""
    inner = work / "liberoplus" / "liberoplus"  # its package, with the assets where its code expects them
    shutil.copytree(plus.PACKAGE_ROOT, inner, ignore=shutil.ignore_patterns("*_files", "__pycache__"))
    (inner.parent / "__init__.py").touch()
    (inner / "assets").symlink_to(asset_directory)
    entries = []
    for number, task in enumerate(tasks):
        np.save(starts := work / f"starts-{number}.npy", suites.init_states(task))
        directory = plus.PACKAGE_ROOT / "bddl_files" / plus.VARIANTS[task.suite].base
        bddl = str(directory / f"{task.name}.bddl")
        entries.append({"bddl": bddl, "states": str(starts), "file": str(task.bddl_path)})
    results = stock_ends(entries, SIZE, True, work, work)
    for task, (_, told) in zip(tasks, results, strict=True):
        if told != task.instruction:
            print(f"{task.suite} {task.index} has the instruction {told!r} there, {task.instruction!r} here")
    return [ends for ends, _ in results]


def complete(source: Path, target: Path, tasks: list[suites.Task]) -> Path:
    """Make an asset directory with stand-ins for the files that tasks lack; return it."""
    print(f"{plus_files.complete(source, target, tasks)} files made for the tasks that are compared")
    return target


def is_complete(source: Path, task: suites.Task) -> bool:
    """Return whether the asset directory has all files of a task."""
    return not plus_assets.missing(source, [task])


if __name__ == "__main__":
    raise SystemExit(main("libero_plus", __doc__, SUITES, SIZE, sample, stock, complete, is_complete))
