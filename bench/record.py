"""How many demonstrations a minute does a core record and draw? The oracle's, every task, both cameras at 128×128.

    ./lab bench record [--quick] [--options "--suite libero_goal --assets kit|official|FOLDER"]

Counted is the processor time of all that takes part (recorder, a worker, the oracle, a process that draws), start-up
and the building of scenes included, so that a busy machine gives the same figure. The wall time is printed too.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.common import figure, flags
from bench.eval import oracle, ran
from vla_evaluation.recording import Demonstrations, draw

CAMERAS, SIZE = ("agentview", "robot0_eye_in_hand"), 128


def timed(job: Callable[[], object]) -> tuple[float, float]:
    """Returns the wall time and the processor time in s that a job took, its ended children's included."""
    wall, before = time.monotonic(), os.times()
    job()
    return time.monotonic() - wall, sum(os.times()[:4]) - sum(before[:4])


def record(root: Path, options: argparse.Namespace, episodes: int) -> None:
    """Records with one worker, the oracle's service on the same core."""
    log = root / "oracle.log"
    with oracle(log) as url:
        words = ["record", options.suite, "--policy-url", url]
        words += ["--run-dir", str(root), "--name", "bench", "--workers", "1", "--episodes", str(episodes)]
        words += ["--assets", options.assets] if options.assets else []
        ran(*words, *(("--tasks", "0,1") if options.quick else ()))


def steps_drawn(demonstrations: Demonstrations) -> int:
    """Draws all pictures; returns of how many steps."""
    return sum(len(drawn[CAMERAS[0]]) for _, drawn in draw(demonstrations.episodes, CAMERAS, SIZE))


def main() -> None:
    parser = flags("Demonstrations a minute.", "four demonstrations of two tasks")
    parser.add_argument("--suite", default="libero_goal")
    parser.add_argument("--assets", help="kit, official or a folder")
    options = parser.parse_args()
    episodes = 4 if options.quick else 20
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        recorded_s, recorded_cpu_s = timed(lambda: record(root, options, episodes))
        demonstrations = Demonstrations(root / "bench")
        drawn_s, drawn_cpu_s = timed(lambda: steps_drawn(demonstrations))
        steps = sum(one.steps for one in demonstrations.episodes)
        size = sum(file.stat().st_size for file in (root / "bench").rglob("*.npz"))
    each = f"{steps / episodes:.0f} steps, {size / episodes / 1e3:.0f} kB each"
    print(f"{options.suite}: {episodes} demonstrations of {each}\n")
    print("             wall s   CPU s  CPU ms/step")
    for name, wall, cpu in (("recorded", recorded_s, recorded_cpu_s), ("drawn", drawn_s, drawn_cpu_s)):
        print(f"{name:10s} {wall:8.1f} {cpu:7.1f} {1e3 * cpu / steps:12.2f}")
    print()
    figure("record_per_minute_and_core", 60 * episodes / (recorded_cpu_s + drawn_cpu_s), "demonstrations", ">=6")


if __name__ == "__main__":
    main()
