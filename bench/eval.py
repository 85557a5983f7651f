"""Gain from a second worker: the same evaluation with one worker and with two, alternately, on the same cores.

    ./lab bench eval [--quick] [--options "--assets kit|official|DIR"]

The oracle solves one task repeatedly, without videos. The figure is the steady state: the steps per second of each
worker from the end of its first episode to the end of its last, summed over the workers. It excludes start-up (several
seconds per worker to import and build the simulator).

The oracle runs beside the worker, so one worker uses more than one core, and two cannot be twice as fast on two cores.
The most that the cores allow is their number divided by the processor time of a step (evaluator, worker and oracle) as
measured with one worker. The figure with a target is the share of it that two workers reach.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from bench.common import figure, flags
from bench.parts.processor_time import ProcessorTime
from bench.parts.serving import ROOT, VARIABLES, program
from vla_evaluation.provenance import cores
from vla_evaluation.store.runstore import RunStore

SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
SUITE, TASK = "libero_goal", "7"  # turn on the stove: about 65 steps, solved every time


@dataclass(frozen=True)
class Measured:
    """One run: steps per second and processor time per step in its steady state, and the whole run's time.

    cpu_ms_per_step: of evaluator, workers and oracle.
    """

    steps_per_s: float
    cpu_ms_per_step: float
    wall_s: float


def oracle(log: Path) -> AbstractContextManager[str]:
    """Serve the oracle; yield its URL."""
    return program(log, sys.executable, "services.libero.policies", "oracle", **SINGLE_THREADED)


def run_job(*arguments: str) -> None:
    """Run an evaluation as users do. Raises RuntimeError if it fails."""
    command = [sys.executable, "-m", "services.libero", *arguments]
    env = {**VARIABLES, **SINGLE_THREADED}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def measure(root: Path, url: str, workers: int, episodes: int, assets: str | None, number: int) -> Measured:
    """Runs the evaluator once as users do."""
    run_id = f"workers-{workers}-{number}"
    where = ["--policy-url", url, "--run-dir", str(root), "--run-id", run_id, "--video", "none"]
    what = ["--tasks", TASK, "--trials", str(episodes), "--workers", str(workers)]
    start = time.monotonic()
    with ProcessorTime() as processor_time:
        run_job(SUITE, *where, *what, *(("--assets", assets) if assets else ()))
    wall_s = time.monotonic() - start
    with RunStore(root / run_id / "run.sqlite", readonly=True) as store:
        finished = store.finished()
    steps, steps_per_s, starts, ends = 0, 0.0, [], []
    for worker in {e.worker for e in finished}:
        first, *others = sorted((e for e in finished if e.worker == worker), key=lambda e: e.ended_at)
        if others:
            steps += (done := sum(e.steps for e in others))
            starts.append(first.ended_at)
            ends.append(others[-1].ended_at)
            steps_per_s += done / (ends[-1] - starts[-1])
    cpu_s = processor_time.at(statistics.mean(ends)) - processor_time.at(statistics.mean(starts))
    return Measured(steps_per_s, 1e3 * cpu_s / steps, wall_s)


def main() -> None:
    """Run both alternately, print a table, and the ratio: its median over the rounds."""
    parser = flags("One worker against two.", "one round of each: at most a minute")
    parser.add_argument("--assets", help="kit, official or a directory")
    options = parser.parse_args()
    rounds, episodes = (1, 16) if options.quick else (3, 50)
    measured: dict[int, list[Measured]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as directory, oracle(Path(directory) / "oracle.log") as url:
        for number in range(rounds):
            for workers, results in measured.items():
                results.append(measure(Path(directory), url, workers, episodes, options.assets, number))
    print(
        f"{SUITE} task {TASK}, {episodes} episodes, oracle on the same {cores()} cores; load {os.getloadavg()[0]:.1f}\n"
    )
    print("workers  steps/s  CPU ms/step  whole run s")
    for workers, results in measured.items():
        for result in results:
            print(f"{workers:7} {result.steps_per_s:8.1f} {result.cpu_ms_per_step:12.2f} {result.wall_s:12.1f}")
    pairs = list(zip(*measured.values(), strict=True))
    walls = statistics.median(one.wall_s / two.wall_s for one, two in pairs)
    print(f"\nwhole run, start-up included: {walls:.2f} times as fast")
    ratio = statistics.median(two.steps_per_s / one.steps_per_s for one, two in pairs)
    figure("eval_two_workers_over_one", ratio, "x", "none")
    limits = [min(2 * one.steps_per_s, 1e3 * cores() / one.cpu_ms_per_step) for one, _ in pairs]
    share = statistics.median(two.steps_per_s / limit for (_, two), limit in zip(pairs, limits, strict=True))
    figure("eval_two_workers_over_limit", share, "x", ">=0.95")


if __name__ == "__main__":
    main()
