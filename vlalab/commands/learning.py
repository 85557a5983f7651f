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
from typing import Any

from vlalab.commands import course, evaluation, programs
from vlalab.commands.evaluation import INTERRUPTED, EvaluationRequest
from vlalab.description import manifests, service_settings
from vlalab.engine import volumes
from vlalab.host import paths
from vlalab.host.console import LabError, say

MODEL = "minivla"
NOISE = 0.2  # on what the oracle does: so that demonstrations show how to recover
IMAGE_SIZE = 128  # pixels of the films; mini-VLA's profile sends as many
DEMONSTRATIONS_PER_MINUTE = 6  # demonstrations that a core records and draws, at least
DEMONSTRATION_SHARE = 1 / 3  # of the minutes, for the demonstrations
MAX_DEMONSTRATIONS = 200  # demonstrations that are made without being asked for more
DERIVED_SETTINGS = ("data", "name", "size", "minutes", "preload")  # of the trainer's settings
MIN_TRAINING_SHARE = 0.1  # of the minutes is left for training, however long the demonstrations took


@dataclass(frozen=True)
class LearningPlan:
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

    plan: LearningPlan
    finished: list[str] = field(default_factory=list)
    spent_s: float = 0.0  # on demonstrations and their films
    train_minutes: float = 0.0  # chosen when training begins, and kept

    @property
    def path(self) -> Path:
        """The file that it is kept in."""
        return paths.volume() / "logs" / "learn" / f"{self.plan.name}.json"

    def save(self) -> None:
        """Write it, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        volumes.give(self.path.parent)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self), indent=1))
        volumes.give(new)
        os.replace(new, self.path)


def load_progress(plan: LearningPlan, counted: bool = True) -> Progress:
    """Returns how far a plan is. Raises LabError where another one was begun under its name.

    counted: whether the demonstrations were asked for. Where they only follow from minutes and cores, a plan that was
    begun keeps its own: it may go on with fewer cores than it began with.
    """
    progress = Progress(plan)
    try:
        stored = json.loads(progress.path.read_text())
        previous = LearningPlan(**stored.pop("plan"))
    except FileNotFoundError:
        return progress
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LabError(f"{paths.shown(progress.path)} cannot be read ({error}); give another --name") from error
    if not counted:
        plan = replace(plan, demonstrations=previous.demonstrations)
    differ = [
        attribute.name
        for attribute in fields(LearningPlan)
        if getattr(previous, attribute.name) != getattr(plan, attribute.name)
    ]
    if differ:
        previous_values, requested = (
            ", ".join(f"{name} {getattr(of, name)}" for name in differ) for of in (previous, plan)
        )
        raise LabError(
            f"{plan.name} was begun with {previous_values}; asked for is {requested}; give another --name to start anew"
        )
    return Progress(plan, **stored)


def settings(typed: list[str]) -> list[str]:
    """Returns the trainer's settings. Raises LabError for unknown ones, and for those that follow from the plan."""
    course.flags(MODEL, typed)
    for setting in typed:
        if (name := setting.partition("=")[0].replace("_", "-")) in DERIVED_SETTINGS:
            raise LabError(
                f"learn --set {name} makes no sense: it follows from --name, --size and --minutes; leave it out"
            )
    return list(typed)


def demonstrations(minutes: float, workers: int) -> int:
    """Returns how many demonstrations a third of the minutes gives, 200 at most."""
    return min(MAX_DEMONSTRATIONS, max(1, int(minutes * DEMONSTRATION_SHARE * DEMONSTRATIONS_PER_MINUTE * workers)))


@dataclass(frozen=True)
class Learning:
    """The four stages, and how they are run."""

    progress: Progress
    workers: int | None
    gpu: str | None
    runtime: str
    dry_run: bool
    typed: str  # the command line, to print what continues

    def stages(self) -> dict[str, tuple[str, Callable[[], int]]]:
        """Return each stage by name: where its result lies on the volume, and what makes it."""
        plan = self.progress.plan
        return {
            "record": (f"demonstrations/{plan.name}", self.record),
            "dataset": (f"datasets/{plan.name}", self.render),
            "train": (f"checkpoints/{MODEL}/{plan.name}", self.train),
            "evaluate": (f"runs/{plan.run_id}", self.evaluate),
        }

    def run(self) -> int:
        """Run what is not finished, an estimate first; return the exit code of the first stage that failed, else 0."""
        if not self.dry_run:
            volumes.require_writable()
            plan = self.progress.plan
            recording = plan.demonstrations / (DEMONSTRATIONS_PER_MINUTE * (self.workers or cores()))
            training = max(plan.minutes - recording, MIN_TRAINING_SHARE * plan.minutes)
            say(
                f"{plan.demonstrations} demonstrations in up to {recording:.0f} min, then up to {training:.0f} min "
                f"training; the evaluation comes after these {plan.minutes:g} min"
            )
        stages = self.stages()
        for number, (name, (path, job)) in enumerate(stages.items(), 1):
            finished = name in self.progress.finished and (paths.volume() / path).exists()
            say(f"stage {number} of {len(stages)}, {name}{': finished' if finished else ''}")
            if not finished and (code := self._stage(name, job)):
                outcome = "stopped" if code == INTERRUPTED else "not complete"
                say(f"{outcome} in stage {name}; this goes on:\n  {self.typed}")
                return code
        if not self.dry_run:
            self.print_summary()
        return 0

    def _stage(self, name: str, job: Callable[[], int]) -> int:
        code, started = INTERRUPTED, time.monotonic()
        try:
            code = job()
        finally:
            if not self.dry_run:
                if name in ("record", "dataset"):
                    self.progress.spent_s += time.monotonic() - started
                if code == 0:
                    self.progress.finished.append(name)
                self.progress.save()
        return code

    def record(self) -> int:
        """Have the oracle demonstrate."""
        plan = self.progress.plan
        policy = manifests.benchmarks()[manifests.job_of(plan.suite)].fallback
        flags = {"name": plan.name, "episodes": plan.demonstrations, "noise": NOISE, "tasks": plan.tasks}
        return self._evaluator(policy, flags, program=("record",))

    def render(self) -> int:
        """Render what was recorded, as a data set."""
        job = manifests.job_of(self.progress.plan.suite)
        flags = {"format": "lerobot", "size": IMAGE_SIZE, "workers": self.workers}
        arguments = [self.progress.plan.name, *programs.flags_of(flags)]
        return programs.run_module(job, manifests.benchmarks()[job].datasets, arguments, self.runtime, self.dry_run)

    def train(self) -> int:
        """Train for what is left of the minutes, and no more epochs than the trainer's own number."""
        plan, progress = self.progress.plan, self.progress
        if not progress.train_minutes:
            progress.train_minutes = round(
                max(plan.minutes - progress.spent_s / 60, MIN_TRAINING_SHARE * plan.minutes), 2
            )
        flags = {"data": plan.name, "name": plan.name, "size": plan.size, "minutes": f"{progress.train_minutes:g}"}
        arguments = [*programs.flags_of(flags), *course.flags(MODEL, plan.settings)]
        module = course.module(MODEL, "train")
        return programs.run_module(course.service(), module, arguments, self.runtime, self.dry_run, self.gpu)

    def evaluate(self) -> int:
        """Evaluate what was trained, with a service of its own."""
        plan = self.progress.plan
        names_run = "resume" if (paths.volume() / "runs" / plan.run_id).exists() else "run_id"
        flags = {"trials": plan.trials, "tasks": plan.tasks, names_run: plan.run_id}
        return self._evaluator(MODEL, flags, policy_variables={service_settings.variable(MODEL, "NAME"): plan.name})

    def _evaluator(self, policy: str, flags: dict[str, object], **more: Any) -> int:
        arguments = tuple(programs.flags_of({**flags, "workers": self.workers}))
        suite = self.progress.plan.suite
        return evaluation.run(
            EvaluationRequest(suite, policy, self.runtime, arguments, self.dry_run, self.gpu, **more), self.typed
        )

    def print_summary(self) -> None:
        """Print how good it is, and where all of it lies."""
        plan = self.progress.plan
        programs.run_module(manifests.job_of(plan.suite), evaluation.RUNS, ["table", plan.run_id], self.runtime)
        run, curves = paths.volume() / "runs" / plan.run_id, paths.volume() / "logs" / "tensorboard" / MODEL
        videos = sorted(run.rglob("*.mp4"))
        print(f"\nlearned: {plan.name}, {plan.demonstrations} demonstrations of {plan.suite}")
        print(f"films    {len(videos)} in {paths.shown(videos[0].parent if videos else run)}")
        print(f"curve    {paths.shown(curves / plan.name)} (./lab tensorboard shows it)")
        print(f"report   ./lab report {plan.run_id}")


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))
