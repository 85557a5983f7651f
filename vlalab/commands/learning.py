"""`learn SUITE`: record demonstrations, build a data set, train and evaluate.

Each stage can resume by itself; this module stores the plan and which stages are finished.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from vlalab.commands import course, evaluation, programs
from vlalab.commands.evaluation import INTERRUPTED, EvaluationRequest
from vlalab.description import manifests, service_settings
from vlalab.engine import volumes
from vlalab.host import paths
from vlalab.host.console import LabError, log_info

MODEL = "minivla"
SCENES = 60  # per demonstration: rearranged steps whose labels teach mini-VLA where things are
NOISE = 0.6  # pushes, so that demonstrations include recovery
IMAGE_SIZE = 128  # pixels; mini-VLA's profile uses the same
DEMONSTRATIONS_PER_MINUTE = 6  # per core, recorded and rendered; a lower bound
DEMONSTRATION_SHARE = 1 / 3  # of the time budget
MAX_DEMONSTRATIONS = 200  # unless --demonstrations is given
DERIVED_SETTINGS = ("data", "name", "size", "minutes", "preload")  # of the trainer; --set cannot change them
ABLATED_TRIALS = 2  # episodes per task without images or the right instruction
MIN_TRAINING_SHARE = 0.1  # of the time budget, even if demonstrations took longer


@dataclass(frozen=True)
class LearningPlan:
    """The requested settings; a run that resumes must have the same."""

    suite: str
    name: str
    minutes: float
    size: str
    tasks: str | None
    demonstrations: int
    trials: int
    settings: list[str] = field(default_factory=list)  # of the trainer: NAME=VALUE
    starts: str = "wide"  # of the demonstrations; for suites that have no wide starts: the suite's

    @property
    def run_id(self) -> str:
        """The evaluation's name."""
        return f"learn-{self.name}"


@dataclass
class PlanProgress:
    """The plan and its finished stages, as stored on the volume."""

    plan: LearningPlan
    finished: list[str] = field(default_factory=list)
    spent_s: float = 0.0  # on demonstrations and their rendering
    train_minutes: float = 0.0  # set when training starts

    @property
    def path(self) -> Path:
        """The file on the volume."""
        return paths.volume() / "logs" / "learn" / f"{self.plan.name}.json"

    def save(self) -> None:
        """Write the file atomically."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        volumes.give_to_parent_owner(self.path.parent)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self), indent=1))
        volumes.give_to_parent_owner(new)
        os.replace(new, self.path)


def load_progress(plan: LearningPlan, counted: bool = True) -> PlanProgress:
    """Return the stored progress of a plan. Raise LabError if a different plan has the same name.

    counted: whether the user gave the number of demonstrations. If it only follows from minutes and cores, a started
    plan keeps its number, so it can resume with fewer cores.
    """
    progress = PlanProgress(plan)
    try:
        stored = json.loads(progress.path.read_text())
        previous = LearningPlan(**stored.pop("plan"))
    except FileNotFoundError:
        return progress
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LabError(f"{paths.display_path(progress.path)} cannot be read ({error}); use another --name") from error
    if not counted:
        plan = replace(plan, demonstrations=previous.demonstrations)
    names = [entry.name for entry in fields(plan) if getattr(previous, entry.name) != getattr(plan, entry.name)]
    if names:
        started, requested = (", ".join(f"{name} {getattr(p, name)}" for name in names) for p in (previous, plan))
        raise LabError(f"{plan.name} was started with {started}, got {requested}; use another --name")
    return PlanProgress(plan, **stored)


def settings(typed: list[str]) -> list[str]:
    """Return the trainer's settings. Raise LabError for unknown ones, and for those that the plan determines."""
    course.flags(MODEL, typed)
    for setting in typed:
        if (name := setting.partition("=")[0].replace("_", "-")) in DERIVED_SETTINGS:
            raise LabError(f"learn --set {name} is not allowed: --name, --size and --minutes determine it; remove it")
    return list(typed)


def demonstrations(minutes: float, workers: int) -> int:
    """Return the number of demonstrations that fit a third of the minutes, at most 200."""
    return min(MAX_DEMONSTRATIONS, max(1, int(minutes * DEMONSTRATION_SHARE * DEMONSTRATIONS_PER_MINUTE * workers)))


@dataclass(frozen=True)
class Learning:
    """The four stages and the settings to run them with."""

    progress: PlanProgress
    workers: int | None
    gpu: str | None
    runtime: str
    dry_run: bool
    typed: str  # the command line, printed for resuming

    def stages(self) -> dict[str, tuple[str, Callable[[], int]]]:
        """Return stage → its result's path on the volume, and the function that runs it."""
        plan = self.progress.plan
        return {
            "record": (f"demonstrations/{plan.name}", self.record),
            "dataset": (f"datasets/{plan.name}", self.render),
            "train": (f"checkpoints/{MODEL}/{plan.name}", self.train),
            "evaluate": (f"runs/{plan.run_id}", self.evaluate),
        }

    def run(self) -> int:
        """Print an estimate and run unfinished stages; return the exit code of the first one that failed, else 0."""
        progress, plan = self.progress, self.progress.plan
        if not self.dry_run:
            volumes.require_writable()
        training = self.training_minutes(60 * self.recording_minutes)
        log_info(
            f"{plan.demonstrations} demonstrations in up to {self.recording_minutes:.1f} min, then up to "
            f"{training:.1f} min training, {self.recording_minutes + training:.1f} in all; "
            "the evaluation takes extra time"
        )
        stages = self.stages()
        for number, (name, (path, job)) in enumerate(stages.items(), 1):
            is_finished = name in progress.finished and (paths.volume() / path).exists()
            log_info(f"stage {number} of {len(stages)}, {name}{': finished' if is_finished else ''}")
            if is_finished:
                continue
            code, started = INTERRUPTED, time.monotonic()
            try:
                code = job()
            finally:
                if not self.dry_run:
                    progress.spent_s += time.monotonic() - started if name in ("record", "dataset") else 0
                    progress.finished += [name] if code == 0 else []
                    progress.save()
            if code:
                outcome = "stopped" if code == INTERRUPTED else "not complete"
                log_info(f"{outcome} in stage {name}. To resume:\n  {self.typed}")
                return code
        if not self.dry_run:
            self.print_summary()
        return 0

    @property
    def recording_minutes(self) -> float:
        """How long demonstrations and their rendering take at most."""
        return self.progress.plan.demonstrations / (DEMONSTRATIONS_PER_MINUTE * (self.workers or cores()))

    def training_minutes(self, spent_s: float) -> float:
        """Return what is left for training after so many seconds of recording."""
        minutes = self.progress.plan.minutes
        return round(max(minutes - spent_s / 60, MIN_TRAINING_SHARE * minutes), 2)

    def record(self) -> int:
        """Record demonstrations of the benchmark's own policy."""
        plan = self.progress.plan
        benchmark = manifests.benchmarks()[manifests.job_of(plan.suite)]
        flags = {"name": plan.name, "episodes": plan.demonstrations, "noise": NOISE, "tasks": plan.tasks}
        flags["starts"] = plan.starts if plan.suite in {*benchmark.wide, *benchmark.wide.values()} else None
        return self._evaluator(benchmark.fallback, flags, program=("record",))

    def render(self) -> int:
        """Render the recording as a data set."""
        job = manifests.job_of(self.progress.plan.suite)
        flags = {"format": "lerobot", "size": IMAGE_SIZE, "workers": self.workers}
        if manifests.benchmarks()[job].scenes:
            flags |= {"scenes": SCENES, "scenes_only": True}
        arguments = [self.progress.plan.name, *programs.flags_of(flags)]
        return programs.run_module(job, manifests.benchmarks()[job].datasets, arguments, self.runtime, self.dry_run)

    def train(self) -> int:
        """Train for the remaining minutes, at most the trainer's default number of epochs."""
        plan, progress = self.progress.plan, self.progress
        if not progress.train_minutes:
            planned_s = 60 * self.recording_minutes if self.dry_run else 0
            progress.train_minutes = self.training_minutes(progress.spent_s or planned_s)
        flags = {"data": plan.name, "name": plan.name, "size": plan.size, "minutes": f"{progress.train_minutes:g}"}
        arguments = [*programs.flags_of(flags), *course.flags(MODEL, plan.settings)]
        module = course.module(MODEL, "train")
        return programs.run_module(course.service(), module, arguments, self.runtime, self.dry_run, self.gpu)

    def evaluate(self) -> int:
        """Evaluate the model with a private policy service."""
        plan = self.progress.plan
        names_run = "resume" if (paths.volume() / "runs" / plan.run_id).exists() else "run_id"
        flags = {"trials": plan.trials, "tasks": plan.tasks, names_run: plan.run_id}
        if plan.trials > 1:  # another episode's images need another episode
            flags |= {"ablate": "images,language", "ablate_trials": ABLATED_TRIALS}
        return self._evaluator(MODEL, flags, policy_variables={service_settings.variable(MODEL, "NAME"): plan.name})

    def _evaluator(self, policy: str, flags: Mapping[str, object], **more: Any) -> int:
        arguments = tuple(programs.flags_of({**flags, "workers": self.workers}))
        suite = self.progress.plan.suite
        request = EvaluationRequest(suite, policy, self.runtime, arguments, self.dry_run, self.gpu, **more)
        return evaluation.run(request, self.typed)

    def print_summary(self) -> None:
        """Print the results table and the paths of all outputs."""
        plan = self.progress.plan
        programs.run_module(manifests.job_of(plan.suite), evaluation.RUNS, ["table", plan.run_id], self.runtime)
        run, curves = paths.volume() / "runs" / plan.run_id, paths.volume() / "logs" / "tensorboard" / MODEL
        videos = sorted(run.rglob("*.mp4"))
        print(f"\nlearned: {plan.name}, {plan.demonstrations} demonstrations of {plan.suite}")
        print(f"videos   {len(videos)} in {paths.display_path(videos[0].parent if videos else run)}")
        print(f"curve    {paths.display_path(curves / plan.name)} (show with ./lab tensorboard)")
        print(f"report   ./lab report {plan.run_id}")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))
