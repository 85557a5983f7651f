"""Tasks that evaluate: a run, and what is made of runs."""

from __future__ import annotations

import shlex
import sys
from contextlib import nullcontext
from pathlib import Path

from vlalab.commands import addresses, evaluation, joining, programs, ray_placement
from vlalab.commands import suites as several
from vlalab.description import manifests
from vlalab.description import runs as existing
from vlalab.host.console import LabError
from vlalab.tasks import flags
from vlalab.tasks.flags import (
    CHECKPOINT,
    DRY_RUN,
    GPU,
    NO_CHECK,
    RUNTIME,
    Flag,
    finish,
    flags_of,
    program_flags,
    task,
    word,
    words,
)  # fmt: skip
from vlalab.tasks.values import Checked, NewFile, Number, OneRun, Several

CONFIG = "vla_evaluation.config"  # of the evaluator's and the recorder's options
RUN_HELP = "a run: its name, the beginning of it, latest, or its folder"


def _benchmark() -> manifests.Benchmark:
    return manifests.benchmarks()[manifests.default_job()]


def suites_help() -> str:
    """Return what may be evaluated, in words."""
    return f"{manifests.suites_in_words()}; all: those of {_benchmark().title}'s table"


def policy_flag(default: str | None = "auto", default_help: str = "") -> Flag:
    """Return the flag of the policy that plays episodes."""
    return Flag(
        "policy",
        f"auto (the policy service that is up, else {_benchmark().fallback}), a service's name, a URL, or several: "
        "URL,URL",
        Checked(evaluation.check_policies, "WHICH"),
        default,
        default_help,
        repeats=True,
    )


@task(
    "evaluate a policy",
    lambda: [
        words("suite", suites_help(), Several(flags.suite_values("all"), "SUITE …")),
        policy_flag(),
        *program_flags(f"{CONFIG}:EvalConfig"),
        *(GPU, RUNTIME, DRY_RUN, NO_CHECK),
        Flag(
            "replicas",
            "start so many of --policy for this evaluation, on a GPU each as far as there are enough",
            Number("[1, 256]"),
            advanced=True,
        ),
        Flag(
            "cluster",
            "have workers placed on the machines of a cluster (./lab cluster); without its head's address: this "
            "machine's",
            Checked(ray_placement.check, "HEAD"),
            optional_value=True,
            advanced=True,
        ),
        Flag(
            "join",
            "work on the run of the evaluator that listens there; no SUITE",
            Checked(joining.check_url, "URL"),
            advanced=True,
        ),
    ],
    name="eval",
)
def evaluate(
    suite: list[str],
    policy: str,
    replicas: int | None,
    join: str | None,
    cluster: str | bool | None,
    gpu: str | None,
    runtime: str,
    dry_run: bool,
    **evaluators: object,
) -> None:
    """Evaluate a policy on a suite of tasks; ends with the success rate and the report's path.

    ./lab eval libero_goal --trials 2                     the oracle, unless a policy service is up
    ./lab eval libero_object --policy http://host:8000    any service that speaks the contract
    ./lab eval libero_goal --trials 2 --resume            go on after Ctrl-C or a crash
    ./lab eval libero_10 --tasks 0,2-4 --episodes 0-4 --workers 4 --video failures
    ./lab eval libero_goal --policy http://a:8000,http://b:8000    the same policy on two GPUs or machines
    ./lab eval libero_goal --runtime docker --trials 1    the same in containers
    ./lab eval all --trials 2                             several suites; ends with their table and its mean
    ./lab eval libero_goal --ensemble exponential         average the chunks that overlap, as ACT does
    ./lab eval libero_goal --realtime 20 --execute 4      the world moves on while the policy thinks
    ./lab eval libero_10 --listen 0.0.0.0:8100            others join: ./lab eval --join http://THIS:8100
    ./lab eval libero_10 --cluster --workers 64           on the machines of ./lab cluster
    ./lab eval libero_10 --cluster --policy openvla --replicas 4    with four of the policy there, too
    """
    if join:
        if suite:
            raise LabError(f"--join takes the suite of the run that is joined; leave {suite[0]} out")
        finish(joining.join(join, policy, {**evaluators, "replicas": replicas}, runtime, dry_run, gpu))
        return
    for one, other, what in (("trials", "episodes", "choose episodes"), ("run_id", "resume", "name a run")):
        if evaluators[one] is not None and evaluators[other] not in (None, False):
            both = " and ".join(f"--{name.replace('_', '-')}" for name in (one, other))
            raise LabError(f"{both} both {what}; give one of them")
    evaluation.check_replicas(replicas, policy)
    if evaluators["resume"] is True and len(suite) == 1:
        existing.require("run")
    chosen, typed = several.chosen(suite), ["./lab", *sys.argv[1:]]
    if not chosen:
        raise LabError(f"eval needs SUITE ({suites_help()}). See: ./lab eval --help")
    if evaluators["workers"] == 0 and not evaluators["listen"]:
        raise LabError("--workers 0 leaves all to machines that join, which takes --listen; expected 1 or more")
    if evaluators["listen"]:
        runtime = joining.runtime_to_listen(runtime, str(evaluators["listen"]), chosen)
    placed = ray_placement.prepare(runtime, cluster, policy, evaluators, replicas) if cluster else None
    if placed:
        runtime, evaluators = placed.runtime, evaluators | placed.flags
    request = evaluation.Request(
        chosen[0],
        policy,
        runtime,
        tuple(flags_of(evaluators)),
        dry_run,
        gpu,
        run_alongside=placed.run_alongside if placed else nullcontext,
        replicas=replicas or 0,
        place_policies=placed.policies if placed and replicas else None,
    )
    one = len(chosen) == 1
    code = evaluation.run(request, shlex.join(typed)) if one else several.run(request, chosen, typed)
    if placed and placed.why:  # where lines of progress were drawn it may have been seen for a moment
        raise LabError(f"the cluster stopped this evaluation: {placed.why}")
    finish(code)


def _offline_flags(*without: str) -> list[Flag]:
    """Return the flags of a task that asks a policy about recorded data."""
    return [
        word("policy", "a service's name or a URL; auto: the policy service that is up",
             Checked(evaluation.check_policy, "POLICY")),
        *program_flags(*flags.places(manifests.benchmarks(), "offline"), without=without),
        Flag("checkpoint", "for a policy that is started: a folder under checkpoints/ on the volume, or a path",
             CHECKPOINT),
        *(GPU, RUNTIME, DRY_RUN),
    ]  # fmt: skip


@task("score on recordings", lambda: _offline_flags("index"))
def offline(policy: str, dataset: str | None, **asking: object) -> None:
    """Compare what a policy would do with what was recorded: errors by dimension, key and episode, and does it listen?

    ./lab offline gr00t --dataset small --plot
    ./lab offline http://host:8000 --dataset ~/data/so100 --episodes 0-4 --cameras front=observation.images.top
    """
    _ask("offline", policy, dataset, asking)


@task("ask for one action", lambda: _offline_flags("plot", "episodes", "steps", "execute"))
def act(policy: str, dataset: str | None, index: int | None, **asking: object) -> None:
    """Show a policy one recorded moment: what it saw and was told, its chunk of actions, and what was done.

    ./lab act gr00t --dataset small --index 0
    """
    _ask("act", policy, dataset, {"index": index or 0, **asking})


def _ask(task: str, policy: str, dataset: str | None, given: dict[str, object]) -> None:
    """Runs the program that asks a policy about recorded data."""
    if not dataset:
        raise LabError(f"{task} needs --dataset: a name under datasets/ on the volume, or a path")
    asked = {name: given.pop(name) for name in ("gpu", "runtime", "dry_run", "checkpoint")}
    arguments = tuple(flags_of({"dataset": dataset, **given}))
    request = evaluation.Request(None, policy, flags=arguments, module=_benchmark().offline, **asked)
    finish(evaluation.run(request, shlex.join(["./lab", *sys.argv[1:]])))


@task(
    "build or serve reports",
    lambda: [
        words("run", RUN_HELP, OneRun(), default=None),
        Flag("serve", "show reports in a browser, also one on another machine; without RUN a list of all",
             default=False),
        RUNTIME,
    ],
)  # fmt: skip
def report(run: str | None, serve: bool, runtime: str) -> None:
    """Build a run's report again from its store; with --serve, start the pages, which show reports.

    ./lab report latest
    ./lab report --serve                          all runs, and how to see them from another machine
    ./lab report latest --serve                   this one; then: ./lab down ui
    """
    if run is None and not serve:
        raise LabError("which run? ./lab runs lists them, and ./lab report --serve shows all of them in a browser")
    if run:
        on_runs(["report", run], runtime)
    if serve:
        addresses.serve_reports(run, runtime)


@task(
    "compare two runs",
    lambda: [
        word("a", RUN_HELP, OneRun()),
        word("b", "another", OneRun()),
        Flag("force", "also an incomplete run, a run with itself, other robots or control frequencies", default=False),
        RUNTIME,
    ],
)
def compare(a: str, b: str, force: bool, runtime: str) -> None:
    """Test two runs against each other, paired by episode.

    ./lab compare libero_goal-oracle-1 libero_goal-random-1
    """
    on_runs(["compare", a, b, *(["--force"] if force else [])], runtime)


@task(
    "policies × suites",
    lambda: [
        words("suite", f"only these suites ({manifests.suites_in_words()}); default: all that have runs",
              Several(flags.suite_values(), "SUITE …")),
        Flag("csv", "write the figures to a file for a spreadsheet", NewFile((".csv",))),
        Flag("html", "write the tables to a page that needs nothing beside it", NewFile((".html", ".htm"))),
        RUNTIME,
    ],
)  # fmt: skip
def leaderboard(suite: list[str], csv: Path | None, html: Path | None, runtime: str) -> None:
    """Set policies against each other over suites: rates with 95 % intervals, and nothing incomparable side by side.

    ./lab leaderboard                             every complete run
    ./lab leaderboard libero_goal libero_10       two suites
    ./lab leaderboard --csv all.csv --html all.html
    """
    existing.require("run")
    files = {"--csv": csv, "--html": html}
    # folder and name apart: a container is shown the folder
    written = [word for flag, file in files.items() if file for word in (flag, str(file.parent), file.name)]
    on_runs(["leaderboard", *suite, *written], runtime)


def on_runs(words: list[str], runtime: str) -> None:
    """Runs the evaluator's program for runs that are there."""
    finish(programs.run_module(manifests.default_job(), evaluation.RUNS, words, runtime))
