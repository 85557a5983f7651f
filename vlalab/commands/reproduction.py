"""`reproduce POLICY SUITE`: repeat a published evaluation and test whether the success rates agree.

The figures are the rows of the benchmarks' profiles that name a `Reproduction`. The evaluator's environment makes the
verdict (shared/evaluation/vla_evaluation/runs/reproduction.py).
"""

from __future__ import annotations

import json
import shlex
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vlalab.commands import evaluation, programs
from vlalab.commands.evaluation import EvaluationRequest
from vlalab.description import manifests, service_settings
from vlalab.host import paths, shared_code
from vlalab.host.console import LabError, log_info, unknown

PACE_STEPS = 10  # of two episodes of each task, to estimate the duration
SUCCESS_STEPS = 0.5  # assumed length of a successful episode, as a fraction of the step limit


@dataclass(frozen=True)
class PublishedFigure:
    """One suite of a published row. profile, row: vla_evaluation.profiles' Profile and PublishedResult."""

    suite: str
    job: str
    profile: Any
    row: Any

    @property
    def percent(self) -> float:
        """The published success rate in percent."""
        return float(self.row.success_percent[self.suite])

    @property
    def max_steps(self) -> int:
        """The step limit of an episode."""
        return int(self.profile.max_steps[self.suite])

    @property
    def checkpoint(self) -> str | None:
        """The directory of its checkpoint on the volume; None: its policy has none."""
        recipe = self.row.reproduction
        if not recipe.checkpoint:
            return None
        return self.filled(recipe.directory or manifests.models()[recipe.service].checkpoints[self.suite])

    @property
    def variables(self) -> dict[str, str]:
        """The variables of its service, which then is started with them, whatever else is running."""
        recipe = self.row.reproduction
        settings = {**({"CHECKPOINT": self.checkpoint} if self.checkpoint else {}), **recipe.settings}
        return {service_settings.variable(recipe.service, name): value for name, value in settings.items()}

    def filled(self, template: str) -> str:
        """Return a template of the row's `Reproduction` for this suite."""
        return str(template).format(suite=self.suite, dashed=self.suite.replace("_", "-"))


def figures() -> dict[tuple[str, str], PublishedFigure]:
    """Return the published figures that the lab can reproduce, by policy and suite."""
    entries: dict[tuple[str, str], PublishedFigure] = {}
    models = manifests.models()
    for job, service in manifests.services().items():
        has_profiles = service.benchmark and isinstance(service.benchmark.profiles, str)
        profiles = shared_code.load(service.benchmark.profiles).values() if has_profiles else []
        published = [(profile, row) for profile in profiles for row in profile.published if row.reproduction]
        for profile, row in published:
            recipe = row.reproduction
            per_suite = "{suite}" in recipe.checkpoint and recipe.service in models
            for suite in row.success_percent:
                if not per_suite or suite in models[recipe.service].checkpoints:
                    entries.setdefault((recipe.policy, suite), PublishedFigure(suite, job, profile, row))
    return entries


def figure(policy: str, suite: str) -> PublishedFigure:
    """Return the published figure of a policy on a suite. Raise LabError, with the known ones, if there is none."""
    entries = figures()
    suites = [name for name_of_policy, name in entries if name_of_policy == policy]
    if not suites:
        raise LabError(unknown("published policy", policy, dict.fromkeys(name for name, _ in entries)))
    if suite not in suites:
        raise LabError(unknown(f"published figure of {policy} for suite", suite, suites, manifests.suite_aliases()))
    return entries[policy, suite]


def run(
    figure: PublishedFigure, trials: int | None, url: str | None, gpu: str | None, runtime: str, dry_run: bool
) -> int:
    """Get checkpoint and assets, evaluate (an earlier run of the same command continues), print the verdict.

    url: a running policy instead of the figure's own service. Return the exit code of the first program that failed.
    """
    recipe, trials = figure.row.reproduction, trials or figure.profile.trials
    if not url and not recipe.service:
        raise LabError(
            f"{recipe.policy} needs its own server (docs/bridges.md); start it and give --url ws://HOST:PORT"
        )
    run_id = f"{figure.suite}-{recipe.policy}-reproduce-{trials}"
    percent = f"{figure.percent:g} %, {figure.row.trials} episodes per task"
    log_info(f"published: {percent}, {figure.row.model}, {figure.row.source}")
    log_info(f"here: {trials} episodes per task, profile {figure.profile.name}, run {run_id}")
    if recipe.differs:
        log_info(f"differs: {recipe.differs}")
    assets = manifests.benchmarks()[figure.job].assets
    options = {"runtime": runtime, "dry_run": dry_run}
    if assets and (code := programs.run(figure.job, assets, ["official"], options)):
        return code
    if not url and recipe.checkpoint:
        getter = manifests.models()[recipe.service].getter
        if code := programs.run(recipe.service, getter, shlex.split(figure.filled(recipe.checkpoint)), options):
            return code
    checkpoint = None if url else figure.checkpoint
    if dry_run and checkpoint and not (paths.volume() / "checkpoints" / checkpoint).is_dir():
        log_info(f"the evaluation's command depends on the checkpoint; get it first: checkpoints/{checkpoint}")
        return 0
    flags = ("--profile", figure.profile.name, *(("--assets", "official") if assets else ()), *recipe.flags)
    variables = {} if url else figure.variables
    request = EvaluationRequest(
        figure.suite, url or recipe.service, runtime, flags, dry_run, gpu, checkpoint=checkpoint,
        policy_variables=variables, repeats=True,
    )  # fmt: skip
    is_new = not (paths.volume() / "runs" / run_id).exists()
    if is_new and not dry_run and (code := announce_duration(figure, request, trials, f"{run_id}-pace")):
        return code
    code = evaluation.run(replace(request, flags=(*request.flags, "--trials", str(trials), "--run-id", run_id)))
    if code or dry_run:
        return code
    return programs.run_module(figure.job, evaluation.RUNS, ["verdict", run_id, figure.row.model], runtime)


def announce_duration(figure: PublishedFigure, request: EvaluationRequest, trials: int, run_id: str) -> int:
    """Measure the pace over the first steps of every task and print how long the evaluation will take.

    Return the exit code of the measurement, whose run is removed.
    """
    log_info(f"measuring the pace: {PACE_STEPS} steps of each task, in a run that is removed afterwards")
    directory = paths.volume() / "runs" / run_id
    shutil.rmtree(directory, ignore_errors=True)  # of a measurement that was interrupted
    flags = ("--trials", "2", "--max-steps", str(PACE_STEPS), "--video", "none", "--run-id", run_id)
    try:
        if code := evaluation.run(replace(request, flags=(*request.flags, *flags))):
            return code
        summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
        lines = (directory / "episodes.jsonl").read_text(encoding="utf-8").splitlines()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    # The first episode of a task also builds the scene and sends its textures to the renderer.
    episodes = [row for row in map(json.loads, lines) if row["episode"] > 0]
    workers = summary["provenance"]["sessions"][-1]["notes"]["workers"]
    count = len(summary["tasks"]) * trials
    seconds = count * episode_s(figure, episodes) / workers
    format_duration = shared_code.load("vla_common.durations:format_duration")
    log_info(
        f"this will take about {format_duration(seconds)}: {count} episodes at the pace of "
        f"{sum(row['steps'] for row in episodes)} steps, measured on this machine; "
        f"a success counts as {SUCCESS_STEPS:.0%} of the step limit"
    )
    return 0


def episode_s(figure: PublishedFigure, episodes: Sequence[Mapping[str, Any]]) -> float:
    """Return the expected seconds of one episode of the figure, from rows of episodes.jsonl of short ones.

    An episode's simulation time includes the protocol's wait steps, which need no image and no policy.
    """
    wait, expected = figure.profile.wait_steps, figure.max_steps * (1 - (1 - SUCCESS_STEPS) * figure.percent / 100)
    times_ms = []
    for row in episodes:
        timings, steps = row["timings_ms"], row["steps"]
        simulation_ms = timings["sim"] / (steps + wait)
        other_ms = (timings["total"] - timings["sim"] - timings["reset"]) / steps
        times_ms.append(timings["reset"] + wait * simulation_ms + expected * (simulation_ms + other_ms))
    return float(statistics.mean(times_ms)) / 1000
