"""Trainings that share cores: the speeds of four side by side on two cores, added up, against one that has both.

The Transformer lab's size tiny on its own corpus. All programs of a side start at the same time, and each chooses its
threads as `./lab train` does. `four, both cores each` is what they do when none looks at the others. Rounds are
measured in turns; a program's speed is the target words that it learned from in a second.

    ./lab bench sharing [--quick]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from typing import IO, cast

from bench.common import figure, flags
from vla_modelkit.threads import set_wait_policy

ENVIRONMENT = "ws_mdl"
CORES = 2
SECONDS, ROUNDS = 15.0, 5
ALL = {"OMP_NUM_THREADS": str(CORES)}
SIDES: dict[str, tuple[int, dict[str, str]]] = {
    "one": (1, {}),
    "four": (4, {}),
    "four, both cores each": (4, ALL),
}


def main() -> int:
    """Prints the figure; returns 1 where it misses its target."""
    asked = flags(__doc__, "one round of three seconds: shows that it runs").parse_args()
    if len(os.sched_getaffinity(0)) < CORES:
        raise SystemExit(f"this needs {CORES} cores")
    rounds, seconds = (1, 3.0) if asked.quick else (ROUNDS, SECONDS)
    speeds: dict[str, list[float]] = {name: [] for name in SIDES}
    for number in range(rounds):
        for name, (count, variables) in SIDES.items():
            load = os.getloadavg()[0]
            threads, words = train_side_by_side(count, variables, seconds)
            speeds[name].append(sum(words))
            speed = f"{sum(words):,.0f} words/s in {' + '.join(map(str, threads))} threads"
            print(f"round {number + 1}, {name}: {speed}, load before {load:.1f}", flush=True)
    for name in SIDES:
        ratios = [side / one for side, one in zip(speeds[name], speeds["one"], strict=True)]
        print(f"{name}: {statistics.median(speeds[name]):,.0f} words/s, {statistics.median(ratios):.2f} of one")
    ratios = [four / one for four, one in zip(speeds["four"], speeds["one"], strict=True)]
    met = figure("sharing_four_over_one", statistics.median(ratios), "×", ">=0.8")
    return 0 if asked.quick or met else 1


def train_side_by_side(count: int, variables: dict[str, str], seconds: float) -> tuple[list[int], list[float]]:
    """Return each training's number of threads and its speed in words/s, of `count` that share two cores."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[:CORES]))
    command = [sys.executable, "-m", "bench.parts.sharing_training", cores, str(seconds)]
    set_wait_policy()
    env = {**{name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}, **variables}
    pipe = subprocess.PIPE
    programs = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env) for _ in range(count)]
    answers = [cast("IO[str]", program.stdout) for program in programs]
    try:
        for _ in ("imported", "threads are chosen and data is read"):  # each step begins when all have done the last
            if "" in [answer.readline() for answer in answers]:
                raise RuntimeError("a training ended before it had begun")
            for program in programs:
                print("next", file=program.stdin, flush=True)
        results = [answer.readline().split() for answer in answers]
    finally:
        for program in programs:
            program.kill()
            program.wait()
    return [int(threads) for threads, _ in results], [float(speed) for _, speed in results]


if __name__ == "__main__":
    raise SystemExit(main())
