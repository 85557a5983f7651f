"""Gain from a second worker: the same evaluation with one worker and with two, alternately, on the same cores.

    ./lab bench eval [--quick] [--options "--assets kit|official|DIR"]

The oracle solves one task repeatedly, without videos. The figure is the steady state: the steps per second of each
worker from the end of its first episode to the end of its last, summed over the workers. It excludes start-up (several
seconds per worker to import and build the simulator). An oracle answers one worker at a time, so the figure with a
target has an oracle for each worker; with one oracle for both, they wait for each other. The processor time of a step
is that of evaluator, workers and oracles: if it grows with two workers, the cores slow each other down.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from bench.common import SINGLE_THREADED, VARIABLES, ProcessorTime, figure, flags, program, run
from vla_evaluation.provenance import cores
from vla_evaluation.store.runstore import RunStore

SUITE, TASK = "libero_goal", "7"  # turn on the stove: about 65 steps, solved every time


class Measured(NamedTuple):
    """One run: steps per second and processor time per step in its steady state, and the whole run's time.

    cpu_ms_per_step: of evaluator, workers and oracle.
    """

    steps_per_s: float
    cpu_ms_per_step: float
    wall_s: float


def measure(root: Path, url: str, workers: int, episodes: int, assets: str | None, name: str) -> Measured:
    """Runs the evaluator once as users do."""
    run_id = f"workers-{workers}-{name}"
    command = [sys.executable, "-m", "services.libero", SUITE, "--policy-url", url, "--run-dir", root]
    command += ["--run-id", run_id, "--video", "none", "--tasks", TASK, "--trials", episodes, "--workers", workers]
    start = time.monotonic()
    with ProcessorTime() as processor_time:
        run([*command, *(("--assets", assets) if assets else ())], {**VARIABLES, **SINGLE_THREADED})
    wall_s = time.monotonic() - start
    with RunStore(root / run_id / "run.sqlite", readonly=True) as store:
        finished = store.finished()
    steps_per_s, cpu_s = processor_time.steady_state((e.worker, e.ended_at, e.steps) for e in finished)
    return Measured(steps_per_s, 1e3 * cpu_s, wall_s)


def main() -> None:
    """Run both alternately, print a table, and the ratio: its median over the rounds."""
    parser = flags("One worker against two.", "one round of each: at most a minute")
    parser.add_argument("--assets", help="kit, official or a directory")
    options = parser.parse_args()
    rounds, episodes = (1, 16) if options.quick else (3, 50)
    measured: dict[tuple[int, int], list[Measured]] = {(1, 1): [], (2, 1): [], (2, 2): []}  # workers, oracles
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        oracle = (sys.executable, "services.libero.policies", "oracle")
        logs = [directory / f"oracle-{number}.log" for number in (1, 2)]
        urls = [stack.enter_context(program(log, *oracle, **SINGLE_THREADED)) for log in logs]
        for number in range(rounds):
            for (workers, oracles), results in measured.items():
                url = ",".join(urls[:oracles])
                results.append(measure(directory, url, workers, episodes, options.assets, f"{oracles}-{number}"))
    print(f"{SUITE} task {TASK}, {episodes} episodes, all on {cores()} cores; load {os.getloadavg()[0]:.1f}\n")
    print("workers  oracles  steps/s  CPU ms/step  whole run s")
    for (workers, oracles), results in measured.items():
        for steps_per_s, cpu_ms, wall_s in results:
            print(f"{workers:7} {oracles:8} {steps_per_s:8.1f} {cpu_ms:12.2f} {wall_s:12.1f}")

    def gain(side: tuple[int, int], attribute: str) -> float:
        pairs = zip(measured[1, 1], measured[side], strict=True)
        return float(statistics.median(getattr(two, attribute) / getattr(one, attribute) for one, two in pairs))

    print(f"\nwhole run, start-up included: {1 / gain((2, 2), 'wall_s'):.2f} times as fast")
    figure("eval_two_workers_over_one", gain((2, 2), "steps_per_s"), "x", ">=1.8")
    figure("eval_two_workers_with_one_oracle_over_one", gain((2, 1), "steps_per_s"), "x", "none")


if __name__ == "__main__":
    main()
