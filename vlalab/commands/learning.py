"""`learn SUITE`: demonstrations, a data set, training and an evaluation, one after the other.

Each of the four goes on by itself where it was stopped; here is only kept which are finished, and what was asked for.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from vlalab.commands import course, evaluation, programs
from vlalab.commands.evaluation import INTERRUPTED, Request
from vlalab.description import manifests, service_settings
from vlalab.engine import volumes
from vlalab.host import paths
from vlalab.host.console import LabError, say

MODEL = "minivla"
NOISE = 0.2  # on what the oracle does: so that demonstrations show how to recover
PICTURE = 128  # pixels of the films; mini-VLA's profile sends as many
PER_MINUTE = 6  # demonstrations that a core records and draws, at least
SHARE = 1 / 3  # of the minutes, for the demonstrations
MOST = 200  # demonstrations that are made without being asked for more
DECIDED = ("data", "name", "size", "minutes", "preload")  # of the trainer's settings
LEAST = 0.1  # of the minutes is left for training, however long the demonstrations took


@dataclass(frozen=True)
class Plan:
    """What was asked for: a run that goes on must not differ in it."""

    suite: str
    name: str
    minutes: float
    size: str
    tasks: str | None
    demonstrations: int
    trials: int
    settings: list[str] = field(default_factory=list)  # of the trainer: NAME=VALUE

    @property
    def run_id(self) -> str:
        """The evaluation's name."""
        return f"learn-{self.name}"


@dataclass
class Progress:
    """What is finished, as it lies on the volume."""

    plan: Plan
    finished: list[str] = field(default_factory=list)
    spent_s: float = 0.0  # on demonstrations and their films
    train_minutes: float = 0.0  # chosen when training begins, and kept

    @property
    def path(self) -> Path:
        """The file that it is kept in."""
        return paths.volume() / "logs" / "learn" / f"{self.plan.name}.json"

    def save(self) -> None:
        """Writes it, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        volumes.give(self.path.parent)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self), indent=1))
        volumes.give(new)
        os.replace(new, self.path)


def begun(plan: Plan, counted: bool = True) -> Progress:
    """Returns how far a plan is. Raises LabError where another one was begun under its name.

    counted: whether the demonstrations were asked for. Where they only follow from minutes and cores, a plan that was
    begun keeps its own: it may go on with fewer cores than it began with.
    """
    progress = Progress(plan)
    try:
        stored = json.loads(progress.path.read_text())
        before = Plan(**stored.pop("plan"))
    except FileNotFoundError:
        return progress
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LabError(f"{paths.shown(progress.path)} cannot be read ({error}); give another --name") from error
    if not counted:
        plan = replace(plan, demonstrations=before.demonstrations)
    differ = [one.name for one in fields(Plan) if getattr(before, one.name) != getattr(plan, one.name)]
    if differ:
        theirs, asked = (", ".join(f"{name} {getattr(of, name)}" for name in differ) for of in (before, plan))
        raise LabError(f"{plan.name} was begun with {theirs}; asked for is {asked}; give another --name to start anew")
    return Progress(plan, **stored)


def settings(typed: list[str]) -> list[str]:
    """Returns the trainer's settings. Raises LabError for unknown ones, and for those that follow from the plan."""
    course.flags(MODEL, typed)
    for one in typed:
        if (name := one.partition("=")[0].replace("_", "-")) in DECIDED:
            raise LabError(
                f"learn --set {name} makes no sense: it follows from --name, --size and --minutes; leave it out"
            )
    return list(typed)


def demonstrations(minutes: float, workers: int) -> int:
    """Returns how many demonstrations a third of the minutes gives, 200 at most."""
    return min(MOST, max(1, int(minutes * SHARE * PER_MINUTE * workers)))


@dataclass(frozen=True)
class Learning:
    """The four stages, and how they are run."""

    progress: Progress
    workers: int | None
    gpu: str | None
    runtime: str
    dry_run: bool
    typed: str  # the command line, to say what goes on

    @property
    def plan(self) -> Plan:
        return self.progress.plan

    def stages(self) -> dict[str, tuple[str, Callable[[], int]]]:
        """Returns each stage by name: where its result lies on the volume, and what does it."""
        name = self.plan.name
        return {
            "record": (f"demonstrations/{name}", self.record),
            "dataset": (f"datasets/{name}", self.draw),
            "train": (f"checkpoints/{MODEL}/{name}", self.train),
            "evaluate": (f"runs/{self.plan.run_id}", self.evaluate),
        }

    def run(self) -> int:
        """Runs what is not finished; returns the exit code of the first stage that did not end well, else 0."""
        stages = self.stages()
        for number, (name, (place, job)) in enumerate(stages.items(), 1):
            finished = name in self.progress.finished and (paths.volume() / place).exists()
            say(f"stage {number} of {len(stages)}, {name}{': finished' if finished else ''}")
            if not finished and (code := self._stage(name, job)):
                how = "stopped" if code == INTERRUPTED else "not complete"
                say(f"{how} in stage {name}; this goes on:\n  {self.typed}")
                return code
        if not self.dry_run:
            self.tell()
        return 0

    def _stage(self, name: str, job: Callable[[], int]) -> int:
        code = INTERRUPTED
        started = time.monotonic()
        try:
            code = job()
        finally:
            if name in ("record", "dataset") and not self.dry_run:
                self.progress.spent_s += time.monotonic() - started
            if code == 0:
                self.progress.finished = [*self.progress.finished, name]
            if not self.dry_run:
                self.progress.save()
        return code

    def record(self) -> int:
        """Has the oracle demonstrate."""
        plan = self.plan
        flags = ["--name", plan.name, "--episodes", str(plan.demonstrations), "--noise", str(NOISE), *self._tasks()]
        fallback = manifests.benchmarks()[manifests.job_of(plan.suite)].fallback
        return evaluation.run(self._request(fallback, flags, ("record",)), self.typed)

    def draw(self) -> int:
        """Draws what was recorded, as a data set."""
        job = manifests.job_of(self.plan.suite)
        makes = manifests.benchmarks()[job].datasets
        flags = [self.plan.name, "--format", "lerobot", "--size", str(PICTURE)]
        flags += ["--workers", str(self.workers)] if self.workers else []
        return programs.run_module(job, makes, flags, self.runtime, self.dry_run)

    def train(self) -> int:
        """Trains for what is left of the minutes, and no more epochs than the trainer's own number."""
        plan, progress = self.plan, self.progress
        if not progress.train_minutes:
            left = plan.minutes - progress.spent_s / 60
            progress.train_minutes = round(max(left, LEAST * plan.minutes), 2)
        flags = ["--data", plan.name, "--name", plan.name, "--size", plan.size]
        flags += ["--minutes", f"{progress.train_minutes:g}", *course.flags(MODEL, plan.settings)]
        return programs.run_module(
            course.service(), course.module(MODEL, "train"), flags, self.runtime, self.dry_run, self.gpu
        )

    def evaluate(self) -> int:
        """Evaluates what was trained, with a service of its own."""
        there = (paths.volume() / "runs" / self.plan.run_id).exists()
        flags = ["--trials", str(self.plan.trials), *self._tasks()]
        flags += ["--resume" if there else "--run-id", self.plan.run_id]
        own = {service_settings.variable(MODEL, "NAME"): self.plan.name}
        return evaluation.run(self._request(MODEL, flags, own=own), self.typed)

    def _tasks(self) -> list[str]:
        return ["--tasks", self.plan.tasks] if self.plan.tasks else []

    def _request(
        self, policy: str, flags: list[str], program: tuple[str, ...] = (), own: dict | None = None
    ) -> Request:
        flags = [*flags, "--workers", str(self.workers)] if self.workers else flags
        return Request(
            self.plan.suite, policy, self.runtime, tuple(flags), self.dry_run, self.gpu, program, own=own or {}
        )

    def tell(self) -> None:
        """Says how good it is, and where all of it lies."""
        job = manifests.job_of(self.plan.suite)
        programs.run_module(job, evaluation.RUNS, ["table", self.plan.run_id], self.runtime)
        run, curves = paths.volume() / "runs" / self.plan.run_id, paths.volume() / "logs" / "tensorboard" / MODEL
        films = sorted(run.rglob("*.mp4"))
        print(f"\nlearned: {self.plan.name}, {self.plan.demonstrations} demonstrations of {self.plan.suite}")
        print(f"films    {len(films)} in {paths.shown(films[0].parent if films else run)}")
        print(f"curve    {paths.shown(curves / self.plan.name)} (./lab tensorboard shows it)")
        print(f"report   ./lab report {self.plan.run_id}")


def run(learning: Learning) -> int:
    """Do all of it, with an estimate first; return the exit code."""
    plan = learning.plan
    if not learning.dry_run:
        volumes.require_writable()
    recording_min = plan.demonstrations / (PER_MINUTE * (learning.workers or cores()))
    training_min = max(plan.minutes - recording_min, LEAST * plan.minutes)
    say(
        f"{plan.demonstrations} demonstrations in up to {recording_min:.0f} min, then up to {training_min:.0f} min "
        f"training; the evaluation comes after these {plan.minutes:g} min"
    )
    return learning.run()


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))
