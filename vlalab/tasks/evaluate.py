"""Tasks that evaluate policies, and reports and comparisons of runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from vlalab.commands import addresses, distributed_eval, evaluation, programs, ray_placement, suites
from vlalab.commands.evaluation import EvaluationRequest
from vlalab.description import manifests
from vlalab.description import runs as existing
from vlalab.host.console import LabError
from vlalab.host.shared_code import option
from vlalab.tasks.flags import Runtime, flags_for, positional, program_flags
from vlalab.tasks.task import finish, task

RUN_HELP = "a run: its name or a prefix of it, latest, or its directory"
SUITE = positional(help=manifests.format_suites(), kind="suite")


@task(
    "evaluate a policy", "./lab report latest --serve", "gpu runtime dry-run no-check",
    lambda: program_flags("vla_evaluation.config:EvalConfig"), name="eval",
)  # fmt: skip
def evaluate(
    suite: list[str] = positional(
        help=f"{manifests.format_suites()}; all: those of the default benchmark's published table", kind="suite",
        keywords=("all",)),
    policy: str = option(
        "auto", "auto (the running policy service, else the benchmark's own), a service's name, a URL, or several "
        "replicas: URL,URL", kind="policy",
    ),
    replicas: int | None = option(
        None, "start N replicas of --policy for this evaluation, one per GPU if there are enough", "[1, 256]",
        group="advanced"),
    cluster: str | bool | None = option(
        None, "run workers on the machines of a cluster (./lab cluster); HEAD: its head's address, default this "
        "machine's cluster", metavar="HEAD", optional_value=True, group="advanced",
    ),
    join: str | None = option(
        None, "add workers to the run of the evaluator at this URL (started with --listen); without SUITE",
        metavar="URL", group="advanced"),
    **options: Any,
) -> None:  # fmt: skip
    """Evaluate a policy on a suite of tasks; prints the success rate and the report's path.

    ./lab eval libero_goal --trials 2                     the running policy service, else the oracle
    ./lab eval libero_object --policy http://host:8000    any service that implements the contract
    ./lab eval libero_goal --trials 2 --resume            continue after Ctrl-C or a crash
    ./lab eval libero_10 --tasks 0,2-4 --episodes 0-4 --workers 4
    ./lab eval libero_goal --policy http://a:8000,http://b:8000    two replicas, on two GPUs or machines
    ./lab eval libero_goal --runtime docker --trials 1    in containers
    ./lab eval all --trials 2                             several suites; prints their table and mean
    ./lab eval libero_goal --ensemble exponential         average overlapping chunks, as ACT does
    ./lab eval libero_goal --realtime 20 --execute 4      do not pause the simulation during inference
    ./lab eval libero_10 --listen 0.0.0.0:8100            add machines: ./lab eval --join http://THIS:8100
    ./lab eval libero_10 --cluster --workers 64           on the machines of ./lab cluster
    ./lab eval libero_10 --cluster --policy openvla --replicas 4    with four replicas of the policy on the cluster
    """
    evaluation.check_policies(policy, None if join else replicas)
    if join:
        if suite:
            raise LabError(f"--join uses the suite of the run that it joins; remove {suite[0]}")
        finish(distributed_eval.join(join, policy, {**options, "replicas": replicas}))
        return
    for first, second in (("trials", "episodes"), ("run_id", "resume")):
        if options[first] is not None and options[second]:
            flags = f"--{first} and --{second}".replace("_", "-")
            raise LabError(f"{flags} exclude each other; give only one of them")
    if not suite:
        raise LabError(f"eval requires SUITE ({manifests.format_suites()}). See: ./lab eval --help")
    if options["resume"] is True and len(suite) == 1:
        existing.require("run")
    selected = suites.select(suite)
    if options["listen"]:
        options["runtime"] = distributed_eval.runtime_to_listen(options["runtime"], options["listen"], selected)
    placement = ray_placement.prepare(cluster, policy, options, replicas or 0) if cluster else None
    if placement:
        options |= placement.options
    run_options, flags = programs.split_options(options)
    request = EvaluationRequest(
        selected[0], policy, flags=flags, replicas=replicas or 0, placement=placement, **run_options
    )
    code = suites.run(request, selected, sys.argv[1:])
    if placement and placement.stop_reason:  # progress lines may have overwritten it
        raise LabError(f"the cluster stopped this evaluation: {placement.stop_reason}")
    finish(code)


POLICY_ARGUMENT = positional(help="a service's name or a URL; auto: the running policy service", kind="policy")
CHECKPOINT_OPTION = option(
    None, "of a policy that is started: a directory in checkpoints/ on the volume, or a path", kind="checkpoint"
)


@task(
    "test on recorded data", "./lab act {policy} --dataset {dataset} --index 0", "gpu runtime dry-run",
    flags_for("offline", without=["index"]),
)  # fmt: skip
def offline(policy: str = POLICY_ARGUMENT, checkpoint: str | None = CHECKPOINT_OPTION, **options: object) -> None:
    """Compare a policy's actions with recorded ones: errors by dimension, key and episode; is the instruction used?

    ./lab offline gr00t --dataset small --plot
    ./lab offline http://host:8000 --dataset ~/data/so100 --episodes 0-4
    """
    _query_policy("offline", policy, checkpoint, options)


@task(
    "query one action", "./lab offline {policy} --dataset {dataset} --plot", "gpu runtime dry-run",
    flags_for("offline", without=["plot", "episodes", "steps", "execute"]),
)  # fmt: skip
def act(policy: str = POLICY_ARGUMENT, checkpoint: str | None = CHECKPOINT_OPTION, **options: object) -> None:
    """Query a policy with one recorded step: show images, instruction, action chunk and recorded actions.

    ./lab act gr00t --dataset small --index 0
    """
    _query_policy("act", policy, checkpoint, {**options, "index": options["index"] or 0})


def _query_policy(task: str, policy: str, checkpoint: str | None, options: dict[str, object]) -> None:
    """Run the program that queries a policy with recorded data."""
    if not options["dataset"]:
        raise LabError(f"{task} requires --dataset: a name in datasets/ on the volume, or a path")
    module = manifests.benchmarks()[manifests.default_job()].offline
    run_options, flags = programs.split_options(options)
    request = EvaluationRequest(None, policy, flags=flags, module=module, checkpoint=checkpoint, **run_options)
    finish(evaluation.run(request))


@task(
    "diagnose a policy", "./lab offline {policy} --dataset NAME --plot", "gpu runtime dry-run",
    flags_for("audit"),
)  # fmt: skip
def audit(
    policy: str | None = positional(
        None, "a service's name, a URL or ws://…; auto: the running policy service; none: audit --dataset itself",
        kind="policy"),
    checkpoint: str | None = CHECKPOINT_OPTION,
    **options: Any,
) -> None:  # fmt: skip
    """Find which convention of a policy is wrong (images, state, actions, serving), before an evaluation is wasted.

    ./lab audit minivla                            a service; the first call records ten demonstrations
    ./lab audit http://host:8000 --suite libero_object
    ./lab audit ws://host:8000 --dataset cups      on recordings of your own
    ./lab audit --dataset cups                     the data set itself
    """
    options["suite"] = options["suite"] or manifests.benchmarks()[manifests.default_job()].audit_suite
    job = manifests.job_of(options["suite"])
    module = manifests.benchmarks()[job].audit
    if not module:
        raise LabError(f"{options['suite']} has no audit; audit a policy on its data set: --dataset NAME")
    run_options, flags = programs.split_options(options)
    if policy is None:
        if not options["dataset"]:
            raise LabError("audit requires POLICY, or --dataset NAME. See: ./lab audit --help")
        finish(programs.run_module(job, module, flags, options["runtime"], options["dry_run"]))
        return
    if not options["dataset"]:
        evaluation.record_for_audit(options["suite"], run_options)
    request = EvaluationRequest(None, policy, flags=flags, module=module, checkpoint=checkpoint, **run_options)
    finish(evaluation.run(request))


@task("build or serve reports", "./lab report {run} --serve", "runtime")
def report(
    run: str | None = positional(None, RUN_HELP, kind="run or directory"),
    serve: bool = option(False, "show the report, or without RUN a list of all, in a browser, also on another machine"),
    runtime: Runtime = "auto",
) -> None:
    """Rebuild a run's report from its store; with --serve, start the web pages that show reports.

    ./lab report latest
    ./lab report --serve             all runs, and how to open them on another machine
    ./lab report latest --serve      stop the pages with: ./lab down ui
    """
    if run is None and not serve:
        raise LabError("report requires RUN (./lab runs lists them), or --serve to show all in a browser")
    if run:
        on_runs(["report", run], runtime)
    if serve:
        addresses.serve_reports(run, runtime)


@task("compare two runs", "./lab leaderboard", "runtime")
def compare(
    a: str = positional(help=RUN_HELP, kind="run or directory"),
    b: str = positional(help="another run", kind="run or directory"),
    force: bool = option(False, "allow incomplete runs, a run with itself, different robots or control frequencies"),
    runtime: Runtime = "auto",
) -> None:
    """Compare two runs with a paired test over their episodes.

    ./lab compare libero_goal-oracle-1 libero_goal-random-1
    """
    on_runs(["compare", a, b, *programs.flags_of({"force": force})], runtime)


@task("policies × suites", "./lab up ui", "runtime")
def leaderboard(
    suite: list[str] = positional(
        help=f"suites to include ({manifests.format_suites()}); default: all with runs", kind="suite"),
    csv: str | None = option(None, "write the results to a CSV file", pattern=r"(?i).+\.csv",
                             expected="a file name that ends with .csv", metavar="FILE"),
    html: str | None = option(None, "write the tables to a self-contained HTML page", pattern=r"(?i).+\.html?",
                              expected="a file name that ends with .html", metavar="FILE"),
    runtime: Runtime = "auto",
) -> None:  # fmt: skip
    """Compare policies across suites: success rates with 95 % intervals; only comparable runs share a table.

    ./lab leaderboard                             every complete run
    ./lab leaderboard libero_goal libero_10       two suites
    ./lab leaderboard --csv all.csv --html all.html
    """
    existing.require("run")
    arguments = []
    for flag, file in (("--csv", csv), ("--html", html)):
        path = Path(file or "").expanduser().absolute()
        if file and not path.parent.is_dir():
            raise LabError(f"{flag} '{file}': directory {path.parent} does not exist; create it or choose another")
        # Separate directory and name: a container mounts the directory.
        arguments += [flag, str(path.parent), path.name] if file else []
    on_runs(["leaderboard", *suite, *arguments], runtime)


def on_runs(arguments: list[str], runtime: str) -> None:
    """Run the program that works on existing runs."""
    finish(programs.run_module(manifests.default_job(), evaluation.RUNS, arguments, runtime))
