"""What helps mini-VLA? Each row differs from the first one in one thing: data, network, head, or how a chunk is used.

    ./lab bench ablations --quick
    ./lab bench ablations --options "--size tiny --rows first,blind,flow"

Two recordings of the oracle, one disturbed (--noise 0.2) and one not, as many demonstrations of both; every row is
trained for as many gradient steps, and evaluated on the same episodes, which no demonstration starts from. Rows named
by a seed are trained from other weights and in another order: what they differ by is chance. Everything lies on the
volume and goes on where it was stopped. A row is paired with the first one by episode.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench.common import figure, flags
from bench.parts.serving import ROOT
from vla_common.volume import Volume
from vla_evaluation.report.compare import Comparison, compare
from vla_evaluation.store.runstore import RunStore

NOISE = "0.2"
EXECUTED = 8  # of a chunk, by profile minivla
BATCH = 64  # observations


@dataclass(frozen=True)
class Row:
    """A variant: what of the demonstrations it learns from, the trainer's settings, and how many actions are done."""

    share: float = 1.0  # of the demonstrations
    disturbed: bool = True  # by --noise
    settings: str = ""  # NAME=VALUE,…
    execute: int = EXECUTED
    trained_as: str = ""  # another row, whose network it takes


ROWS = {
    "first": Row(),
    "half": Row(share=0.5),
    "quarter": Row(share=0.25),
    "undisturbed": Row(disturbed=False),
    "chunk-4": Row(settings="chunk=4", execute=4),
    "chunk-8": Row(settings="chunk=8"),
    "chunk-32": Row(settings="chunk=32"),
    "execute-4": Row(execute=4, trained_as="first"),
    "execute-16": Row(execute=16, trained_as="first"),
    "front": Row(settings="cameras=front"),
    "wrist": Row(settings="cameras=wrist"),
    "blind": Row(settings="pictures=false"),
    "diffusion": Row(settings="head=diffusion"),
    "flow": Row(settings="head=flow"),
    "seed-1": Row(settings="seed=1"),
    "seed-2": Row(settings="seed=2"),
    "blind-seed-1": Row(settings="pictures=false,seed=1"),
    "blind-seed-2": Row(settings="pictures=false,seed=2"),
}


@dataclass(frozen=True)
class Asked:
    """What all rows have in common; `name` begins the names of everything that is made."""

    name: str
    suite: str
    tasks: str
    demonstrations: int
    size: str
    epochs: int
    trials: int
    assets: str
    limit: tuple[str, ...] = ()  # of an episode's steps

    def data(self, row: Row) -> str:
        """Returns the name of a row's recording and data set."""
        return f"{self.name}-{'noise' if row.disturbed else 'plain'}"

    def run(self, name: str) -> str:
        """Returns the name of a row's model and evaluation."""
        return f"{self.name}-{name}"


def lab(*words: str, **variables: str) -> None:
    """Runs ./lab with those words. Where it fails, it has said why: this ends with its exit code."""
    if code := subprocess.run([str(ROOT / "lab"), *words], cwd=ROOT, env={**os.environ, **variables}).returncode:
        raise SystemExit(code)


def demonstrate(asked: Asked, row: Row) -> None:
    """Records and draws what a row learns from; what is there is not done again."""
    data, noise = asked.data(row), NOISE if row.disturbed else "0"
    if (Volume().path("datasets") / data / "meta" / "info.json").exists():
        return
    several = ("--tasks", asked.tasks, "--episodes", str(asked.demonstrations), "--assets", asked.assets)
    lab("record", asked.suite, "--name", data, "--noise", noise, *several)
    lab("dataset", data, "--format", "lerobot", "--size", "128")


def epochs(asked: Asked, row: Row) -> int:
    """Returns how often a row sees its demonstrations: it takes as many steps as the first one, or a few more."""
    batches = {one: math.ceil(frames(asked, one) * one.share / BATCH) for one in (row, ROWS["first"])}
    return math.ceil(asked.epochs * batches[ROWS["first"]] / batches[row])


def frames(asked: Asked, row: Row) -> int:
    """Returns the steps that a row's data set has."""
    return json.loads((Volume().path("datasets") / asked.data(row) / "meta" / "info.json").read_text())["total_frames"]


def train(asked: Asked, name: str, row: Row) -> None:
    """Trains a row; a run that is there goes on, or is found finished."""
    episodes = 0 if row.share == 1 else round(asked.demonstrations * row.share)
    given = [f"episodes={episodes}", f"batch-size={BATCH}", "save-every=1000000", *filter(None, [row.settings])]
    chosen = ("--size", asked.size, "--epochs", str(epochs(asked, row)), "--set", ",".join(given))
    lab("train", "minivla", "--data", asked.data(row), "--name", asked.run(name), *chosen)


def evaluate(asked: Asked, name: str, row: Row) -> RunStore:
    """Evaluates a row, unless that was done; returns its store. RuntimeError where another network answered."""
    run, model = Volume().runs / asked.run(name), asked.run(row.trained_as or name)
    if not is_complete(run):
        plan = ["--tasks", asked.tasks, "--trials", str(asked.trials), "--execute", str(row.execute), *asked.limit]
        plan += ["--policy", "minivla", "--assets", asked.assets, "--video", "none", "--workers", "1"]
        begun = "--resume" if (run / "run.sqlite").exists() else "--run-id"
        lab("eval", asked.suite, *plan, begun, run.name, VLALAB_MINIVLA_NAME=model)
    store = RunStore(run / "run.sqlite", readonly=True)
    if (answered := store.meta("identity")["policy"]["checkpoint"]["repo"]) != f"minivla/{model}":
        found = f"{run.name} is of {answered}; expected minivla/{model}: was another mini-VLA up?"
        raise RuntimeError(f"{found} ./lab down minivla, then ./lab runs --delete {run.name}, and begin again")
    return store


def is_complete(run: Path) -> bool:
    """Returns whether all of a run's episodes are done."""
    summary = run / "summary.json"
    return summary.exists() and json.loads(summary.read_text())["complete"]


def line(name: str, found: Comparison) -> str:
    """Returns a row of the table, in Markdown."""
    low, high = (100 * end for end in found.b.interval)
    rate = f"{found.b.successes} of {found.b.trials} | {100 * found.b.value:.0f} % ({low:.0f}–{high:.0f})"
    against = (100 * one for one in (found.difference, *found.interval))
    paired = "" if name == "first" else "{:+.0f} ({:+.0f} to {:+.0f})".format(*against)
    return f"| {name} | {rate} | {paired} |"


def main() -> None:
    parser = flags("What helps mini-VLA?", "one task, a few steps: shows that it runs")
    parser.add_argument("--name", default="ablation", help="begins the names of what is made on the volume")
    parser.add_argument("--suite", default="libero_object")
    parser.add_argument("--tasks", default="0-9")
    parser.add_argument("--demonstrations", type=int, default=200, help="of each of the two recordings")
    parser.add_argument("--size", default="tiny", choices=("tiny", "small", "base"))
    parser.add_argument("--epochs", type=int, default=6, help="over all demonstrations; of fewer as many steps")
    parser.add_argument("--trials", type=int, default=10, help="episodes per task")
    parser.add_argument("--assets", default="kit")
    parser.add_argument("--rows", default=",".join(ROWS), help="those alone; the first one is always among them")
    given = vars(parser.parse_args())
    names = list(dict.fromkeys(["first", *given.pop("rows").split(",")]))
    if unknown := [name for name in names if name not in ROWS]:
        parser.error(f"no rows {', '.join(unknown)}; there are {', '.join(ROWS)}")
    if given.pop("quick"):
        given |= {"name": "ablation-quick", "tasks": "0", "demonstrations": 2, "epochs": 1, "trials": 1}
        given["limit"], names = ("--max-steps", "20"), ["first", "execute-16"]
    asked = Asked(**given)
    for name in names:
        row = ROWS[name]
        demonstrate(asked, row)
        if not row.trained_as:
            train(asked, name, row)
        evaluate(asked, name, row).close()
    print("| differs in | episodes | success, 95 % | against the first, points |\n|---|---|---|---|")
    for name in names:
        with evaluate(asked, "first", ROWS["first"]) as first, evaluate(asked, name, ROWS[name]) as other:
            print(line(name, found := compare(first, other)))
        figure(f"ablation_{asked.suite}_{asked.size}_{name}", 100 * found.b.value, "%", ">=0")


if __name__ == "__main__":
    main()
