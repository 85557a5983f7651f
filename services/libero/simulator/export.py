"""`python -m services.libero.simulator.export DIR`: write the shuffled suites for stock LIBERO.

DIR/SUITE/TASK_start_00.bddl   one file per start, for `OffScreenRenderEnv(bddl_file_name=…)`; `reset()` suffices
DIR/SUITE/TASK.npz             `states`, float64 [50, 1 + nq + nv]: the same starts for `set_init_state`
DIR/SUITE/starts.json          digest, and x, y (m) and yaw (rad) of everything in every start
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from services.libero.benchmark import BENCHMARK
from services.libero.simulator import shuffled, suites
from vla_common import entrypoint
from vla_common.volume import Volume

if TYPE_CHECKING:
    from services.libero.simulator.env import LiberoEnv


def export(directory: Path, suite: suites.Suite, env: LiberoEnv) -> None:
    """Write one suite; `env` is a `LiberoEnv`."""
    directory.mkdir(parents=True, exist_ok=True)
    starts: dict[str, list[dict[str, shuffled.Place]]] = {}
    digest = shuffled.digest(suite)
    for task in suite.tasks:
        env.load_task(task)
        states, names = [], list(shuffled.placed(task.bddl()))
        margins = {thing.name: thing.horizontal_radius for thing in env.domain.objects}
        for episode, row in enumerate(shuffled.rows(task)):
            places = dict(zip(names, zip(*[iter(row)] * 3, strict=True), strict=True))
            text = shuffled.point_bddl(task.bddl(), places, margins)
            (directory / f"{task.name}_start_{episode:02d}.bddl").write_text(text, encoding="utf-8")
            env.reset(episode, np.array(row))
            states.append(env.sim_state())
            starts.setdefault(task.name, []).append(places)
        np.savez_compressed(directory / f"{task.name}.npz", states=np.array(states))
    content = {"suite": suite.name, "sha256": digest, "starts": starts}
    (directory / "starts.json").write_text(json.dumps(content, indent=1) + "\n")
    print(f"{directory}: {len(suite.tasks)} tasks, {shuffled.EPISODES} starts each, digest {digest[:16]}")


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m services.libero.simulator.export DIR", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as work:
        env = BENCHMARK.make_env(BENCHMARK.assets(None, Volume().root).path, Path(work), (), 64, "none")
        for name in shuffled.VARIANTS:
            export(Path(arguments[0]) / name, suites.load_suite(name), env)
    return 0


if __name__ == "__main__":
    entrypoint.run(main, sys.argv[1:])
