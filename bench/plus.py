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

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np

from bench.parts import plus_files
from bench.parts.disturbed import Ends, measure, parse_options, run_stock
from services.libero import assets
from services.libero.assets import plus as plus_assets
from services.libero.simulator import plus, runtime, suites
from vla_common.volume import Volume

SUITES = tuple(name for name, variant in plus.VARIANTS.items() if variant.kind)
SIZE = 224  # the wheel's glass blur is made for 224 pixels
STOCK = Path(__file__).parent / "parts" / "plus_stock.py"


def sample(name: str, number: int) -> suites.Task:
    """Return the task of a suite that is compared; of noise none that its own code draws by ImageMagick."""
    tasks = [task for task in suites.load_suite(name).tasks if task.disturbance.noise not in range(1, 11)]
    return tasks[(number * 97 + 31) % len(tasks)]


def package(work: Path, asset_directory: Path) -> None:
    """Make LIBERO-plus's package below `work`, with its assets in the expected place next to its code."""
    inner = work / "liberoplus" / "liberoplus"
    shutil.copytree(plus.PACKAGE_ROOT, inner, ignore=shutil.ignore_patterns("*_files", "__pycache__"))
    (inner.parent / "__init__.py").touch()
    (inner / "assets").symlink_to(asset_directory)


def stock(tasks: list[suites.Task], asset_directory: Path, work: Path) -> list[Ends]:
    """Return states and images of the tasks from LIBERO-plus's own environment."""
    package(work, asset_directory)
    listed = []
    for number, selected in enumerate(tasks):
        np.save(work / f"starts-{number}.npy", suites.init_states(selected))
        directory = plus.PACKAGE_ROOT / "bddl_files" / plus.VARIANTS[selected.suite].base
        listed.append({"bddl": str(directory / f"{selected.name}.bddl"), "file": str(selected.bddl_path)})
    (work / "tasks.json").write_text(json.dumps({"size": SIZE, "tasks": listed}))
    run_stock(STOCK, work, work)
    ends = []
    for number, task in enumerate(tasks):
        with np.load(work / f"{number}.npz") as stored:
            if str(stored["told"]) != task.instruction:
                print(
                    f"{task.suite} {task.index} has the instruction {stored['told']!r} there, {task.instruction!r} here"
                )
            ends.append(list(zip(stored["states"], stored["pictures"], strict=True)))
    return ends


def main() -> int:
    options = parse_options(__doc__, SUITES)
    source = assets.resolve(options.assets, Volume().root)
    print(f"assets: {source.kind}")
    tasks = [sample(name, SUITES.index(name)) for name in options.compared]
    with tempfile.TemporaryDirectory() as work, tempfile.TemporaryDirectory() as stock_work:
        directory = Path(work) / "assets"
        print(f"{plus_files.complete(source.path, directory, tasks)} files made for the tasks that are compared")
        runtime.configure(directory, Path(work) / "ours", render="cpu")
        expected = list(zip(tasks, stock(tasks, directory, Path(stock_work)), strict=True))

        def is_complete(task: suites.Task) -> bool:
            return not plus_assets.missing(source.path, [task])

        return measure("libero_plus", options, directory, SIZE, expected, is_complete)


if __name__ == "__main__":
    raise SystemExit(main())
