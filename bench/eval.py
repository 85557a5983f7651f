"""Gain from a second worker: the same evaluation with one worker and with two, alternately, on the same cores.

    ./lab bench eval [--quick] [--options "--assets kit|official|DIR"]

The oracle solves one task repeatedly, without videos. The figure is the steady state: the steps per second of each
worker from the end of its first episode to the end of its last, summed over the workers. It excludes start-up (several
seconds per worker to import and build the simulator). The run's total wall time and its processor time without the
oracle's are printed too: if a step takes more processor time with two workers, the cores slow each other down.
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
from bench.parts.serving import ROOT, VARIABLES, program
from vla_evaluation.provenance import cores
from vla_evaluation.store.records import Finished
from vla_evaluation.store.runstore import RunStore

SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
SUITE, TASK = "libero_goal", "7"  # turn on the stove: about 65 steps, solved every time


@dataclass(frozen=True)
class Measured:
    """One run: steps per second in its steady state, milliseconds per step, and the whole run's time.

    cpu_ms_per_step: processor time of evaluator and workers, start-up included.
    """

    steps_per_s: float
    episode_ms_per_step: float
    wall_s: float
    cpu_ms_per_step: float


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
    start, before = time.monotonic(), os.times()
    run_job(
        *(SUITE, "--policy-url", url, "--run-dir", str(root)),
        *("--run-id", run_id, "--tasks", TASK, "--trials", str(episodes), "--workers", str(workers), "--video", "none"),
        *(("--assets", assets) if assets else ()),
    )
    wall_s, after = time.monotonic() - start, os.times()
    cpu_s = sum(after[2:4]) - sum(before[2:4])
    with RunStore(root / run_id / "run.sqlite", readonly=True) as store:
        finished = store.finished()
    episode_ms = sum(e.result["timings_ms"]["total"] for e in finished)
    steps = sum(e.steps for e in finished)
    return Measured(steady_rate(finished), episode_ms / steps, wall_s, 1e3 * cpu_s / steps)


def steady_rate(finished: list[Finished]) -> float:
    """Return the sum over the workers of steps per second, from the end of each one's first episode on."""
    total = 0.0
    for worker in {e.worker for e in finished}:
        episodes = sorted((e for e in finished if e.worker == worker), key=lambda e: e.ended_at)
        if len(episodes) > 1:
            total += sum(e.steps for e in episodes[1:]) / (episodes[-1].ended_at - episodes[0].ended_at)
    return total


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
    print("workers  steps/s  ms/step in an episode  whole run s  CPU ms/step")
    for workers, results in measured.items():
        for result in results:
            print(f"{workers:7} {result.steps_per_s:8.1f} {result.episode_ms_per_step:22.2f} ", end="")
            print(f"{result.wall_s:12.1f} {result.cpu_ms_per_step:12.2f}")
    pairs = list(zip(*measured.values(), strict=True))
    walls = statistics.median(pair.wall_s / two.wall_s for pair, two in pairs)
    print(f"\nwhole run, start-up included: {walls:.2f} times as fast")
    ratio = statistics.median(two.steps_per_s / pair.steps_per_s for pair, two in pairs)
    figure("eval_two_workers_over_one", ratio, "x", ">=1.8")


if __name__ == "__main__":
    main()
