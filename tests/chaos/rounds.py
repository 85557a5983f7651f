"""Rounds of faults on running evaluations: each is disturbed, resumed, and held against one that was left in peace."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.chaos.faults import DISK, KINDS, LAB_KINDS, Fault
from tests.chaos.ledger import Ledger
from tests.chaos.processes import marked
from tests.chaos.stage import PLANS, Plan, Stage
from tests.libero.harness import results, wait_for
from vla_evaluation.store.runstore import RunStore

RESUMES = 6
SMALL_DISK_MB = 6
EPISODES = "episodes through faults: once each, equal to undisturbed ones"


@dataclass(frozen=True)
class Round:
    """One disturbed evaluation, as the seed has it."""

    number: int
    plan: Plan
    workers: int
    video: str
    through_lab: bool
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        details = "./lab eval" if self.through_lab else "evaluator"
        text = "; ".join(map(str, self.faults))
        return f"round {self.number}: {details}, {self.plan.policy}, {self.workers} workers, video {self.video}: {text}"


def draw_round(seed: int, number: int, lab: bool) -> Round:
    """Return round `number` of that seed. Every kind of fault comes up once in as many rounds as there are kinds."""
    draw = random.Random(f"{seed}/{number}")
    kinds = [kind for kind in KINDS if lab or kind not in LAB_KINDS]
    order = random.Random(seed).sample(kinds, len(kinds))
    first = order[number % len(order)]
    through_lab = first in LAB_KINDS
    fitting = [kind for kind in kinds if (kind in LAB_KINDS) == through_lab and kind != DISK]
    plan = draw.choice(PLANS)
    selected = [first, *(draw.choice(fitting) for _ in range(draw.choice((0, 1, 1, 2)) if first != DISK else 0))]
    after = sorted(draw.randrange(len(plan.units) - 2) for _ in selected)
    faults = tuple(
        Fault(kind, at, round(draw.uniform(0, 0.6), 2), round(draw.uniform(0.5, 7.0), 1), draw.randrange(100))
        for kind, at in zip(draw.sample(selected, len(selected)), after, strict=True)
    )
    return Round(number, plan, draw.choice((1, 2, 2, 3)), draw.choice(("none", "none", "sample")), through_lab, faults)


class Faults:
    """Plays rounds and keeps, for each plan, what it gives undisturbed."""

    def __init__(self, directory: Path, assets: Path, ledger: Ledger, lab: Path | None):
        self.directory, self.assets, self.ledger, self.lab = directory, assets, ledger, lab
        self.calm: dict[Plan, Path] = {}

    def play(self, seed: int, first: int, until: float, only: int | None = None) -> None:
        """Play rounds from `first` on until that moment (time.monotonic), or round `only`."""
        number = first if only is None else only
        while only is not None or time.monotonic() < until or number == first:
            fault_round = draw_round(seed, number, self.lab is not None)
            print(f"  {fault_round}", flush=True)
            self.play_round(fault_round)
            if only is not None:
                return
            number += 1

    def undisturbed(self, plan: Plan) -> Path:
        """Return the run of a plan that nothing happened to."""
        if plan not in self.calm:
            directory = self.directory / f"calm-{plan.policy}"
            with Stage(directory, plan, 2, self.assets) as stage:
                stage.start_policy()
                stage.start()
                code = stage.wait_end()
                assert code == 0, stage.output()
                self.calm[plan] = stage.directory
        return self.calm[plan]

    def play_round(self, fault_round: Round) -> None:
        """Play one round and counts what held."""
        calm = self.undisturbed(fault_round.plan)
        with self.room(fault_round) as directory:
            if directory is None:
                return
            plan, lab = fault_round.plan, self.lab if fault_round.through_lab else None
            with Stage(directory, plan, fault_round.workers, self.assets, fault_round.video, lab) as stage:
                struck: list[Fault] = []
                try:
                    disturb(stage, fault_round, struck)
                    problem = after_all(stage, calm)
                except AssertionError as error:
                    problem = f"{error}; output: {stage.output()[-1500:]}"
                passed, story = problem is None, f"{fault_round}: {problem}"
                for fault in struck:
                    self.ledger.count(fault.kind, passed, story)
                self.ledger.count(EPISODES, passed, story, len(fault_round.plan.units) if struck or not passed else 0)

    @contextmanager
    def room(self, fault_round: Round) -> Iterator[Path | None]:
        """Yield a folder for the round: on a small file system if its disk is to be full, None where we may not."""
        directory = Path(tempfile.mkdtemp(prefix=f"round-{fault_round.number}-", dir=self.directory))
        small = any(fault.kind == DISK for fault in fault_round.faults)
        if small and (problem := _mount(directory)):
            self.ledger.skip(DISK, problem)
            yield None
            return
        try:
            yield directory
        finally:
            if small:
                subprocess.run(["umount", "-l", str(directory)], check=False)
            shutil.rmtree(directory, ignore_errors=True)


def disturb(stage: Stage, fault_round: Round, struck: list[Fault]) -> None:
    """Play the faults; where the evaluation has ended it is resumed, until it is complete."""
    stage.start_policy()
    stage.start()
    for fault in fault_round.faults:
        running = stage.wait_done(fault.after)
        if not running and stage.done() < len(stage.plan.units):  # ended by an earlier fault
            _resume(stage)
            running = stage.wait_done(fault.after)
        if running:
            struck.append(fault)
            fault.strike(stage)
    for _ in range(RESUMES):
        if stage.wait_end() == 0:
            return
        _resume(stage)
    raise AssertionError(f"the evaluation was not complete after {RESUMES} resumes")


def _resume(stage: Stage) -> None:
    if not stage.lab and not stage.policies():
        stage.start_policy()
    time.sleep(0.5)
    stage.start()


def after_all(stage: Stage, calm: Path) -> str | None:
    """Return what is wrong with a run that is complete, beside the undisturbed one; None if nothing is."""
    actual, expected = results(stage.directory), results(calm)
    if sorted(actual) != sorted(expected):
        return f"episodes {sorted(actual)}, planned {sorted(expected)}"
    if changed := [key for key in expected if actual[key] != expected[key]]:
        return f"episodes {changed} differ from undisturbed ones: {[(actual[k], expected[k]) for k in changed[:2]]}"
    return (
        _miscounted(stage.directory, expected)
        or _recordings(stage.directory, calm, list(expected))
        or _left_behind(stage)
        or _traceback(stage.output())
    )


def _traceback(output: str) -> str | None:
    """Return the first traceback in an output; Python's own word for a Ctrl-C before the program began is none."""
    for match in re.finditer(r"Traceback \(most recent[\s\S]*?\n(\w[^\n]*)", output):
        if not match[1].startswith("KeyboardInterrupt"):
            return f"a traceback in the output: {match[0][-1500:]}"
    return None


def _miscounted(directory: Path, expected: dict[tuple[int, int], tuple]) -> str | None:
    successes = sum(bool(result[0]) for result in expected.values())
    with RunStore(directory / "run.sqlite", readonly=True) as store:
        counts = list(store.counts().values())
    reported = json.loads((directory / "summary.json").read_text())
    lines = [json.loads(line) for line in (directory / "episodes.jsonl").read_text().splitlines()]
    named = sorted((line["task"], line["episode"]) for line in lines)
    stored = (sum(row["done"] for row in counts), sum(row["successes"] for row in counts))
    if stored != (len(expected), successes):
        return f"the store counts (done, successes) {stored}, expected {(len(expected), successes)}"
    if named != sorted(expected):
        return f"episodes.jsonl has {named}"
    if (reported["episodes"], reported["successes"]) != stored:
        return f"summary.json says {reported}"
    return None


def _recordings(directory: Path, calm: Path, keys: list[tuple[int, int]]) -> str | None:
    for task, episode in keys:
        name = f"episodes/{task:02d}-{episode:02d}.npz"
        with np.load(directory / name) as actual, np.load(calm / name) as expected:
            if not all(np.array_equal(actual[part], expected[part]) for part in ("actions", "states")):
                return f"recording {name} differs from the undisturbed one"
    return None


def _left_behind(stage: Stage) -> str | None:
    own_pids = {} if stage.lab else {pid: 1 for pid in stage.policies()}  # ours, ended with the stage
    try:
        wait_for(lambda: not marked(stage.mark).keys() - own_pids.keys(), "the processes' end", 30)
    except AssertionError:
        left = [arguments for pid, arguments in marked(stage.mark).items() if pid not in own_pids]
        return f"processes left behind: {left}"
    partial = [str(path) for path in stage.directory.rglob("*") if ".partial" in path.name or ".npz." in path.name]
    return f"files left behind: {partial}" if partial else None


def _mount(directory: Path) -> str | None:
    if shutil.which("mount") is None:
        return "there is no mount command"
    command = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_MB}m", "tmpfs", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"a small file system could not be mounted ({done.stderr.strip()})" if done.returncode else None
