"""Tasks that evaluate policies, and reports and comparisons of runs."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

from vlalab.commands import addresses, distributed_eval, evaluation, programs, ray_placement, suites
from vlalab.description import compose, manifests
from vlalab.description import runs as existing
from vlalab.host.console import LabError
from vlalab.host.shared_code import option
from vlalab.tasks.flags import Runtime, of_benchmarks, positional, program_flags
from vlalab.tasks.task import FlagValues, finish, task

CONFIG = "vla_evaluation.config"  # of the evaluator's and the recorder's options
RUN_HELP = "a run: its name or a prefix of it, latest, or its directory"
SUITE = positional(help=manifests.format_suites(), kind="suite")


def _after_evaluating(values: FlagValues) -> str:
    """Return the run's page if the pages are up, else a command to compare it with an earlier run or to show it."""
    last, *earlier = existing.newest() or ["latest"]
    if page := addresses.open_page(compose.PAGE, f"/runs/{last}"):
        return page
    earlier_of_suite = [name for name in earlier if name.split("-")[0] == last.split("-")[0]]
    return f"./lab compare {earlier_of_suite[0]} {last}" if earlier_of_suite else f"./lab report {last} --serve"


def _after_report(values: FlagValues) -> str:
    """Return the report's page if the pages are up, else a command to show it."""
    run, runs = str(values["run"] or "RUN"), existing.newest()
    if values["serve"]:
        return addresses.open_page(compose.PAGE) or "./lab up ui"
    if run == "latest" and runs:
        run = runs[0]
    page = addresses.open_page(compose.PAGE, f"/runs/{run}") if run in runs else ""
    return page or f"./lab report {run} --serve"


@task(
    "evaluate a policy",
    _after_evaluating,
    "gpu runtime dry-run no-check",
    options=lambda: program_flags(f"{CONFIG}:EvalConfig"),
    name="eval",
)
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
    gpu: str | None = None,
    runtime: Runtime = "auto",
    dry_run: bool = False,
    **evaluator_options: object,
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
    evaluation.check_policies("--policy", policy)
    if join:
        if suite:
            raise LabError(f"--join uses the suite of the run that it joins; remove {suite[0]}")
        finish(distributed_eval.join(join, policy, {**evaluator_options, "replicas": replicas}, runtime, dry_run, gpu))
        return
    for first, second, purpose in (("trials", "episodes", "select episodes"), ("run_id", "resume", "name a run")):
        if evaluator_options[first] is not None and evaluator_options[second] not in (None, False):
            flags = " and ".join(f"--{name.replace('_', '-')}" for name in (first, second))
            raise LabError(f"{flags} both {purpose}; give only one of them")
    if not suite:
        raise LabError(f"eval requires SUITE ({manifests.format_suites()}). See: ./lab eval --help")
    if evaluator_options["resume"] is True and len(suite) == 1:
        existing.require("run")
    evaluation.check_replicas(replicas, policy)
    selected = suites.select(suite)
    if evaluator_options["workers"] == 0 and not evaluator_options["listen"]:
        raise LabError("--workers must be 1 or more, got 0; 0 requires --listen, so that other machines can join")
    if evaluator_options["listen"]:
        runtime = distributed_eval.runtime_to_listen(runtime, str(evaluator_options["listen"]), selected)
    placed = ray_placement.prepare(runtime, cluster, policy, evaluator_options, replicas or 0) if cluster else None
    if placed:
        runtime, evaluator_options = placed.runtime, evaluator_options | placed.flags
    request = evaluation.EvaluationRequest(
        selected[0],
        policy,
        runtime,
        tuple(programs.flags_of(evaluator_options)),
        dry_run,
        gpu,
        run_alongside=placed.run_alongside if placed else nullcontext,
        replicas=replicas or 0,
        start_policies=placed.policies if placed and replicas else None,
    )
    code = evaluation.run(request) if len(selected) == 1 else suites.run(request, selected, ["./lab", *sys.argv[1:]])
    if placed and placed.stop_reason:  # repeated, since progress lines may have overwritten it
        raise LabError(f"the cluster stopped this evaluation: {placed.stop_reason}")
    finish(code)


POLICY_ARGUMENT = positional(help="a service's name or a URL; auto: the running policy service", kind="policy")
CHECKPOINT_OPTION = option(
    None, "of a policy that is started: a directory in checkpoints/ on the volume, or a path", kind="checkpoint"
)


@task(
    "test on recorded data",
    "./lab act {policy} --dataset {dataset} --index 0",
    "gpu runtime dry-run",
    options=of_benchmarks("offline", without=["index"]),
)
def offline(policy: str = POLICY_ARGUMENT, checkpoint: str | None = CHECKPOINT_OPTION, **options: object) -> None:
    """Compare a policy's actions with recorded ones: errors by dimension, key and episode; is the instruction used?

    ./lab offline gr00t --dataset small --plot
    ./lab offline http://host:8000 --dataset ~/data/so100 --episodes 0-4
    """
    _query_policy("offline", policy, checkpoint, options)


@task(
    "query one action",
    "./lab offline {policy} --dataset {dataset} --plot",
    "gpu runtime dry-run",
    options=of_benchmarks("offline", without=["plot", "episodes", "steps", "execute"]),
)
def act(policy: str = POLICY_ARGUMENT, checkpoint: str | None = CHECKPOINT_OPTION, **options: object) -> None:
    """Query a policy with one recorded step: show images, instruction, action chunk and recorded actions.

    ./lab act gr00t --dataset small --index 0
    """
    _query_policy("act", policy, checkpoint, {**options, "index": options["index"] or 0})


def _query_policy(task: str, policy: str, checkpoint: str | None, options: dict[str, object]) -> None:
    """Run the program that queries a policy with recorded data."""
    if not options["dataset"]:
        raise LabError(f"{task} requires --dataset: a name in datasets/ on the volume, or a path")
    run_options = {name: options.pop(name) for name in ("gpu", "runtime", "dry_run")}
    module = manifests.benchmarks()[manifests.default_job()].offline
    flags = tuple(programs.flags_of(options))
    finish(
        evaluation.run(
            evaluation.EvaluationRequest(None, policy, flags=flags, module=module, checkpoint=checkpoint, **run_options)
        )
    )


@task("build or serve reports", _after_report, "runtime")
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
        raise LabError(
            "report requires RUN; run ./lab runs to list them, or ./lab report --serve to show all in a browser"
        )
    if run:
        on_runs(["report", run], runtime)
    if serve:
        addresses.serve_reports(run, runtime)


@task(
    "compare two runs",
    lambda values: (
        addresses.open_page(compose.PAGE, "/runs/compare?a={a}&b={b}".format_map(values))
        or f"./lab report {values['b'] or 'RUN'} --serve"
    ),
    "runtime",
)
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


@task("policies × suites", lambda _: addresses.open_page(compose.PAGE, "/runs/leaderboard") or "./lab up ui", "runtime")
def leaderboard(
    suite: list[str] = positional(help=f"suites to include ({manifests.format_suites()}); default: all with runs",
                            kind="suite"),
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
