"""Do more workers than cores pay while a policy thinks elsewhere? With growth and without, one after the other.

    ./lab bench growth [--quick] [--options "--assets kit|official|FOLDER --seconds N --latency-ms N"]

The policy answers chunks of eight random actions to a picture and sleeps before each answer, as one on a GPU or on
another machine seems to from here; it answers eight questions at once. Random actions never solve the task, so every
episode has the same steps. One run has as many workers as cores (`--workers`), the other begins with as many and gets
one more a minute (no `--workers`). Compared are the episodes an hour of the last third of each run's time, when the
second has its workers, and of the whole time, start-up included. The machine's load decides on growth: it must be idle
otherwise.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench.common import figure, flags
from bench.parts.serving import ROOT, VARIABLES, served
from vla_contract import ActionChunk, Observation, PolicyInfo, create_app
from vla_contract.protocol.parts import GRIPPER_CLOSES, OSC_POSE
from vla_evaluation.provenance import cores
from vla_evaluation.random_policy import RandomPolicy
from vla_evaluation.store.runstore import RunStore

ENVIRONMENT = "libero"
SUITE, STEPS, CHUNK, BATCH = "libero_goal", 300, 8, 8
ARM = (*(replace(part, low=-0.2, high=0.2) for part in OSC_POSE), GRIPPER_CLOSES)  # small movements
END_S = 120.0  # for a run to end once it is told to


@dataclass(frozen=True)
class Sleeping(RandomPolicy):
    """Random actions after a while in which it takes no processor."""

    latency_s: float = 0.2

    def info(self) -> PolicyInfo:
        return replace(super().info(), max_batch=BATCH)

    def act(self, observations: list[Observation]) -> list[ActionChunk]:
        time.sleep(self.latency_s)
        return super().act(observations)


def make_app(latency_s: float):
    """Returns the policy's application."""
    policy = Sleeping("sleeping", ARM, horizon=CHUNK, cameras=("agentview",), latency_s=latency_s)
    return create_app(policy, max_batch=BATCH)


@dataclass(frozen=True)
class Measured:
    """Episodes an hour of the last third and of all of a run's time, and how many workers it ended with."""

    late: float
    whole: float
    workers: int


def measure(root: Path, url: str, name: str, seconds: float, *words: str) -> Measured:
    """Runs the evaluator for that long as users do, then tells it to stop as Ctrl-C does."""
    command = [sys.executable, "-m", "services.libero", SUITE, "--policy-url", url, "--run-dir", str(root)]
    command += ["--run-id", name, "--trials", "50", "--max-steps", str(STEPS), "--video", "none"]
    log = root / f"{name}.log"
    with open(log, "w") as output:
        run = subprocess.Popen([*command, *words], cwd=ROOT, env=VARIABLES, stdout=output, stderr=output)
    try:
        run.wait(seconds)
        raise RuntimeError(f"the run ended before its {seconds:g} s:\n{log.read_text()}")
    except subprocess.TimeoutExpired:
        run.send_signal(signal.SIGINT)
        run.wait(END_S)
    finally:
        run.kill()
        run.wait()
    with RunStore(root / name / "run.sqlite", readonly=True) as store:
        (invocation,) = store.invocations()
        ends = [one.ended_at - invocation["started"] for one in store.finished()]
    late = sum(seconds * 2 / 3 < end <= seconds for end in ends) / (seconds / 3)
    return Measured(3600 * late, 3600 * len(ends) / seconds, invocation["notes"]["workers"])


def main() -> int:
    """Measures both; returns 1 where growth brings less than it should."""
    parser = flags(__doc__.splitlines()[0], "three minutes of each: growth has hardly begun, and nothing is judged")
    parser.add_argument("--assets", default="kit", help="kit, official or a folder")
    parser.add_argument("--seconds", type=float, default=480.0, help="of each run")
    parser.add_argument("--latency-ms", type=float, default=200.0)
    asked = parser.parse_args()
    seconds = min(asked.seconds, 180.0) if asked.quick else asked.seconds
    load = os.getloadavg()[0]
    sides = {"as many as cores": ("--workers", str(cores())), "growing": ()}
    found: dict[str, Measured] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        served(partial(make_app, asked.latency_ms / 1e3)) as (url, _),
    ):
        for name, words in sides.items():
            found[name] = measure(Path(folder), url, name.replace(" ", "-"), seconds, "--assets", asked.assets, *words)
    print(
        f"{SUITE}, {asked.assets}, {STEPS} steps an episode, chunks of {CHUNK}, answers after {asked.latency_ms:g} ms"
    )
    print(f"{cores()} cores, load {load:.1f} before; {seconds:g} s of each\n")
    print("workers           at the end  episodes/h, last third  episodes/h, whole run")
    for name, one in found.items():
        print(f"{name:17s} {one.workers:10d} {one.late:23.0f} {one.whole:22.0f}")
    fixed, growing = found.values()
    if not fixed.late or not fixed.whole:
        print("\nno episode ended in the last third: the machine is too busy, or --seconds too few")
        return 1
    print()
    figure("growth_whole_run", growing.whole / fixed.whole, "x", ">=1")
    enough = figure("growth_last_third", growing.late / fixed.late, "x", ">=1.5")
    return 0 if enough or asked.quick else 1


if __name__ == "__main__":
    raise SystemExit(main())
