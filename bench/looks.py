"""Does mini-VLA use its cameras, and what does each part of it bring?

    ./lab bench looks [--options "--part shuffled --part stock --suite object …"]

Every policy is trained from nothing for at most --minutes, after recording and rendering, and evaluated with
--episodes on the kit's assets. A part that is interrupted continues with the same command; finished steps are listed in
logs/looks.json on the volume, and their results are not made again.

pair      one sentence, two arrangements: libero_object with the base's words at LIBERO's places and at LIBERO-PRO's
shuffled  libero_object_shuffled and libero_goal_shuffled: seeing, blind, another task's sentence, other images
pro       those policies on LIBERO-PRO's swapped positions with the base's words
wordings  those policies with other wordings (bench/parts/wordings.json, written before any training)
stock     those policies on libero_object and libero_goal; the time of an answer on one core
parts     what each part brings: rows that change one thing, three training seeds each
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bench.common import ROOT, figure, flags, missed
from vlalab.host import paths

ENVIRONMENT = "host"
WORDINGS = Path(__file__).parent / "parts" / "wordings.json"
PAIR = "0-9,20-29"  # of libero_object_pro: LIBERO's own places, then the swapped ones
DEMONSTRATIONS = {"object": 200, "goal": 1000}  # libero_object is one skill, libero_goal's ten tasks are many
SCENES, NOISE = 12_000, 0.6
SEEDS = (0, 1, 2)
BLIND = ("pictures=false", "epochs=20")
ROWS = {  # settings of the trainer that each change one thing
    "all parts": (),
    "without free labels: the images learn from actions alone": ("looks=0",),
    "without images": ("pictures=false",),
    "front camera only": ("cameras=front",),
    "images of 64 pixels, a smaller network": ("size=tiny",),
    "without the robot's state, hence without free labels": ("state=false",),
}
BASES = {"object": "libero_object", "goal": "libero_goal"}


class Targets(NamedTuple):
    """Of the policies that see."""

    shuffled: str
    swap: str
    stock: str


TARGETS = {"object": Targets(">=60", ">=40", ">=75"), "goal": Targets(">=45", ">=25", ">=65")}


@dataclass
class Looks:
    """The options, and the steps that are finished."""

    options: argparse.Namespace
    finished: list[str] = field(default_factory=list)

    @property
    def kinds(self) -> list[str]:
        return self.options.suite or list(BASES)

    @property
    def log(self) -> Path:
        return paths.volume() / "logs" / "looks.json"

    def step(self, *words: str, **variables: str) -> None:
        """Run a `./lab` command once; raise SystemExit if it fails."""
        line = " ".join([*(f"{name}={value}" for name, value in variables.items()), "./lab", *words])
        if line in self.finished:
            return
        print(f"\n{line}", flush=True)
        started = time.monotonic()
        code = subprocess.run([str(ROOT / "lab"), *words], env={**os.environ, **variables}).returncode
        if code:
            raise SystemExit(f"stopped: the step ended with exit code {code}. The same command continues")
        print(f"{time.monotonic() - started:.0f} s", flush=True)
        self.finished.append(line)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_text(json.dumps(self.finished, indent=1))

    def demonstrate(self, name: str, suite: str, kind: str, *more: str, videos: bool = False) -> None:
        """Record demonstrations and render scenes of them; with videos the data set is named NAME-v3.0."""
        count = self.options.demonstrations or DEMONSTRATIONS[kind]
        drawn = ("--episodes", str(count), "--noise", str(NOISE), "--assets", "kit")
        self.step("record", suite, "--name", name, *drawn, *more)
        scenes = ("--scenes", str(SCENES // max(count, DEMONSTRATIONS["object"])))
        form, only = ("lerobot-v3.0", ()) if videos else ("lerobot", ("--scenes-only",))
        self.step("dataset", name, "--format", form, "--size", "128", *scenes, *only)

    def train(self, data: str, name: str, minutes: float, settings: tuple[str, ...] = (), seed: int = 0) -> None:
        size = [setting.partition("=")[2] for setting in settings if setting.startswith("size=")]
        rest = [setting for setting in settings if not setting.startswith("size=")]
        wanted = ",".join([*rest, f"minutes={minutes:g}", f"seed={seed}"])
        chosen = ("--size", *size) if size else ("--size", "small")
        self.step("train", "minivla", "--data", data, "--name", name, *chosen, "--set", wanted)

    def evaluate(self, model: str, suite: str, tasks: int, *more: str, run: str = "") -> str:
        """Evaluate a model; return the run's name."""
        run = run or f"looks-{model}-on-{suite}"
        trials = str(max(1, self.options.episodes // tasks))
        named = ("--resume", run) if (paths.volume() / "runs" / run).exists() else ("--run-id", run)
        words = ("eval", suite, "--policy", "minivla", "--trials", trials, "--assets", "kit", "--video", "none", *more)
        if not any(line.endswith(f" {run}") for line in self.finished):
            self.step(*words, *named, VLALAB_MINIVLA_NAME=model)
        return run


def percent(run: str, tasks: range | None = None) -> tuple[float, int]:
    """Return the success rate of a run in %, and of how many episodes; tasks: of these alone."""
    path = paths.volume() / "runs" / run / "episodes.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [row for row in rows if tasks is None or row["task"] in tasks]
    return 100 * sum(row["success"] for row in rows) / max(1, len(rows)), len(rows)


def report(name: str, run: str, target: str, tasks: range | None = None) -> None:
    """Print a run's success rate with its Wilson interval of 95 %."""
    rate, count = percent(run, tasks)
    low, high = wilson(rate / 100, count)
    print(f"  {name}: {rate:.0f} % of {count} episodes, 95 % {100 * low:.0f} to {100 * high:.0f} % ({run})")
    figure(f"looks_{name}", rate, "%", target)


def wilson(rate: float, count: int) -> tuple[float, float]:
    """Return the ends of the 95 % interval of a rate; the report's own needs numpy, which the host has not."""
    z = 1.96
    centre = (rate + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * ((rate * (1 - rate) + z * z / (4 * count)) / count) ** 0.5
    return max(0.0, centre - half), min(1.0, centre + half)


def pair(looks: Looks) -> None:
    looks.demonstrate("looks-pair", "libero_object_pro", "object", "--tasks", PAIR, "--instructions", "base")
    for name, settings, target in (("seeing", (), ">=75"), ("blind", BLIND, "<=10")):
        looks.train("looks-pair", f"pair-{name}", looks.options.minutes, settings)
        run = looks.evaluate(f"pair-{name}", "libero_object_pro", 20, "--tasks", PAIR, "--instructions", "base")
        report(f"pair_{name}", run, target)
        if name == "seeing":
            report("pair_swapped", run, ">=65", range(20, 30))


def trained(looks: Looks, kind: str) -> str:
    """Return the seeing policy of a shuffled suite, trained on demonstrations from wide starts."""
    looks.demonstrate(f"looks-{kind}", BASES[kind], kind, "--starts", "wide")
    looks.train(f"looks-{kind}", f"{kind}-seeing", looks.options.minutes)
    return f"{kind}-seeing"


def shuffled(looks: Looks) -> None:
    for kind in looks.kinds:
        suite, model = f"{BASES[kind]}_shuffled", trained(looks, kind)
        run = looks.evaluate(model, suite, 10, "--ablate", "language,images")
        report(f"{kind}_shuffled_seeing", run, TARGETS[kind].shuffled)
        for ablated, target in (("other-instruction", "<=15"), ("black-images", "none"), ("other-images", "none")):
            report(f"{kind}_shuffled_{ablated.replace('-', '_')}", f"{run}/ablations/{ablated}", target)
        looks.train(f"looks-{kind}", f"{kind}-blind", looks.options.minutes, BLIND)
        report(f"{kind}_shuffled_blind", looks.evaluate(f"{kind}-blind", suite, 10), "<=15")


def pro(looks: Looks) -> None:
    for kind in looks.kinds:
        run = looks.evaluate(trained(looks, kind), f"{BASES[kind]}_swap", 10, "--instructions", "base")
        report(f"{kind}_swap", run, TARGETS[kind].swap)


def wordings(looks: Looks) -> None:
    for kind in looks.kinds:
        model, suite = trained(looks, kind), f"{BASES[kind]}_shuffled"
        usual, _ = percent(looks.evaluate(model, suite, 10, "--ablate", "language,images"))
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "wordings.json"
            path.write_text(json.dumps(json.loads(WORDINGS.read_text())[BASES[kind]]))
            run = looks.evaluate(model, suite, 10, "--instructions-file", str(path), run=f"looks-{model}-other-words")
        other, _ = percent(run)
        report(f"{kind}_other_words", run, "none")
        figure(f"looks_{kind}_other_words_below", usual - other, "points", "<=15")


def stock(looks: Looks) -> None:
    for kind in looks.kinds:
        report(f"{kind}_stock", looks.evaluate(trained(looks, kind), BASES[kind], 10), TARGETS[kind].stock)
        figure(f"looks_{kind}_answer", answer_ms(f"{kind}-seeing"), "ms", "<=25")


def answer_ms(model: str) -> float:
    """Return the median time of an answer in ms, on one core."""
    script = f"""
import statistics, time, torch
torch.set_num_threads(1)
from services.minivla.policy import load_policy, newest
from vla_common.volume import Volume
policy = load_policy(*newest(Volume().path("checkpoints") / "minivla", {model!r}), "cpu", 10, 16, 0)
seconds = []
for _ in range(60):
    started = time.perf_counter()
    policy.act([policy.example(90)])
    seconds.append(time.perf_counter() - started)
print("median", 1e3 * statistics.median(seconds[10:]))
"""
    path = paths.volume() / "logs" / "looks_answer.py"
    path.write_text(script)
    done = subprocess.run(
        [str(ROOT / "lab"), "shell", "ws_mdl", "--command", f"OMP_NUM_THREADS=1 taskset -c 0 python {path}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(re.findall(r"median ([\d.]+)", done.stdout)[-1])


def parts(looks: Looks) -> None:
    """Compare the rows; those that --rows or a stop left out are listed."""
    wide = ("--starts", "wide")
    looks.demonstrate("looks-object", "libero_object", "object", *wide, videos=True)  # two rows learn from videos
    results: dict[str, list[float]] = {}
    for row, settings in list(ROWS.items())[: looks.options.rows]:
        for seed in SEEDS[: looks.options.seeds]:
            model = f"part{list(ROWS).index(row)}-seed{seed}"
            looks.train("looks-object-v3.0", model, looks.options.row_minutes, settings, seed)
            rate, _ = percent(looks.evaluate(model, "libero_object_shuffled", 10))
            results.setdefault(row, []).append(rate)
            print(f"  {row}: {', '.join(f'{rate:.0f}' for rate in results[row])} %", flush=True)
    for row in ROWS:
        rates = results.get(row, [])
        missing = len(SEEDS) - len(rates)
        print(f"| {row} | {', '.join(f'{rate:.0f}' for rate in rates)} | {f'{missing} not run' if missing else ''} |")


PARTS = {
    "pair": pair,
    "shuffled": shuffled,
    "pro": pro,
    "wordings": wordings,
    "stock": stock,
    "parts": parts,
}


def main() -> int:
    parser = flags(__doc__, "20 demonstrations, one minute and 20 episodes each: shows that all of it runs")
    parser.add_argument("--part", action="append", choices=PARTS, help="run this one; default: all")
    parser.add_argument(
        "--suite", action="append", choices=BASES, help="this one; default: both. `pair`, `parts`: object"
    )
    parser.add_argument("--minutes", type=float, default=60, help="of training for a policy")
    parser.add_argument("--row-minutes", type=float, default=15, help="of training for a row of `parts`")
    parser.add_argument("--demonstrations", type=int, help=f"default: {DEMONSTRATIONS}")
    parser.add_argument("--episodes", type=int, default=100, help="of an evaluation")
    parser.add_argument("--rows", type=int, default=len(ROWS), help="of `parts`: the first ones")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="of `parts`: the first ones")
    options = parser.parse_args()
    if options.quick:
        options.demonstrations, options.minutes, options.row_minutes, options.episodes = 20, 1, 1, 20
    looks = Looks(options)
    if looks.log.exists():
        looks.finished = json.loads(looks.log.read_text())
    for name in options.part or PARTS:
        print(f"\n== {name}", flush=True)
        PARTS[name](looks)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
