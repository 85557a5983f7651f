"""Do two machines of one core do twice what one does, and what does joining a run cost an episode?

    ./lab bench nodes [--quick]

Real evaluators of the random policy on one task: one worker with the store, one machine that has joined, and two, each
pinned to a core of its own; policy and evaluator have the rest of both. What a worker takes for an episode is the time
from its first lease to its last result, over its episodes. Once with nothing drawn, where an episode is as short as it
can be and what joining adds shows most; and once with a camera, as policies that see have it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.common import figure, flags
from bench.parts.serving import ROOT, VARIABLES, program
from vla_evaluation.store.runstore import RunStore

STEPS = 100
SEEING = "agentview"  # the camera that a policy that sees asks for
PATIENCE_S = 300.0
BEGAN = "SELECT worker, COUNT(*), MAX(ended_at) - MIN(leased_at) FROM episodes WHERE status = 'done' GROUP BY worker"


def started(core: int | None, *words: str, log: Path) -> subprocess.Popen:
    """Starts a part of the lab's job, on one core where one is given."""
    pin = (lambda: os.sched_setaffinity(0, {core})) if core is not None else None
    with open(log, "w") as output:
        command = [sys.executable, "-m", "services.libero", *words]
        return subprocess.Popen(command, cwd=ROOT, env=VARIABLES, stdout=output, stderr=output, preexec_fn=pin)


def seconds_per_episode(folder: Path, name: str, policy: str, machines: int, episodes: int) -> list[float]:
    """Returns what each worker takes for an episode in a run with so many machines that have joined; 0: its own worker.

    RuntimeError where the run does not end well.
    """
    log, cores = folder / f"{name}.txt", sorted(os.sched_getaffinity(0))
    words = ["libero_goal", "--run-dir", str(folder), "--run-id", name, "--policy-url", policy, "--tasks", "0"]
    words += ["--trials", str(episodes), "--max-steps", str(STEPS), "--video", "none"]
    words += ["--listen", "127.0.0.1:0", "--workers", "0"] if machines else ["--workers", "1"]
    run = started(None if machines else cores[0], *words, log=log)
    joined = []
    try:
        if machines:
            url = address(run, log)
            joined = [
                started(cores[k], "join", url, "--workers", "1", log=folder / f"{name}.{k}.txt")
                for k in range(machines)
            ]
        if run.wait(PATIENCE_S) != 0:
            raise RuntimeError(log.read_text())
    finally:
        for process in (run, *joined):
            process.terminate()
            process.wait()
    with RunStore(folder / name / "run.sqlite", readonly=True) as store:
        return [seconds / count for _, count, seconds in store.db.execute(BEGAN)]


def address(run: subprocess.Popen, log: Path) -> str:
    """Returns where an evaluator listens. RuntimeError where it ended instead."""
    while not (found := re.search(r"--join (\S+)\n", log.read_text())):
        if run.poll() is not None:
            raise RuntimeError(log.read_text())
        time.sleep(0.05)
    return found[1]


def compare(folder: Path, episodes: int, *camera: str) -> tuple[float, float]:
    """Returns what joining adds to an episode, as a share, and how much more two machines do than one."""
    words = [word for name in camera for word in ("--cameras", name)]
    with program(folder / "policy.txt", sys.executable, "services.libero.policies", "random", *words) as policy:
        (alone,) = seconds_per_episode(folder, f"alone{len(camera)}", policy, 0, episodes)
        (joined,) = seconds_per_episode(folder, f"one{len(camera)}", policy, 1, episodes)
        both = seconds_per_episode(folder, f"two{len(camera)}", policy, 2, episodes)
    told = ", ".join(f"{one:.3f}" for one in both)
    drawn = camera[0] if camera else "nothing"
    print(f"{STEPS} steps, {drawn} drawn: own store {alone:.3f} s, joined {joined:.3f} s, two machines {told} s")
    return joined / alone - 1, joined * sum(1 / one for one in both)


def main() -> None:
    options = flags("One machine against two.", "fewer episodes").parse_args()
    with tempfile.TemporaryDirectory() as name:
        overhead, blind = compare(Path(name), 20 if options.quick else 50)
        seeing_overhead, seeing = compare(Path(name), 6 if options.quick else 16, SEEING)
    figure("cluster_joined_overhead", 100 * overhead, "%", "<=2")
    figure("cluster_joined_overhead_camera", 100 * seeing_overhead, "%", "<=2")
    figure("cluster_two_nodes_nothing_drawn", blind, "x", ">=1.8")
    figure("cluster_two_nodes_camera", seeing, "x", ">=1.8")


if __name__ == "__main__":
    main()
