"""Tasks that evaluate: a run, and what is made of runs."""

from __future__ import annotations

import shlex
import sys
from contextlib import nullcontext
from pathlib import Path

from vlalab.commands import evaluation, joining, placing, programs, viewing
from vlalab.commands import suites as several
from vlalab.description import datasets, manifests
from vlalab.description import runs as runs_there
from vlalab.host.console import LabError
from vlalab.tasks.flags import DRY_RUN, GPU, NO_CHECK, RUNTIME, Flag, advanced, finish, flags_of, task, word, words
from vlalab.tasks.serve import CHECKPOINT, FOLDER_NAME
from vlalab.tasks.values import Checked, Existing, Like, NewFile, Number, OneOf, OneRun, Ranges, Several, Text

BENCHMARKS = manifests.benchmarks()
HOME = BENCHMARKS[manifests.default_job()]
SUITES = manifests.suites_in_words()
SEVERAL = Several(OneOf(("all", *manifests.suites()), aliases=manifests.suite_aliases()), "SUITE …")
EPISODES = max(one.episodes for one in BENCHMARKS.values())
PROFILES = tuple(dict.fromkeys(profile for one in BENCHMARKS.values() for profile in one.profiles))
CAMERAS = tuple(dict.fromkeys(camera for one in BENCHMARKS.values() for camera in one.cameras))
RUN = OneRun()
RUN_ID = Like(r"[A-Za-z0-9][A-Za-z0-9._-]*", "letters, digits, '.', '_' and '-', as a folder's name", "RUN")
NEW_ID = Like(rf"(?!latest$){RUN_ID.pattern}", f"{RUN_ID.expected}, and not latest", "RUN")
RESUMED = Checked(lambda label, text: runs_there.run(label, str(RUN_ID.read(label, text))), "RUN")
NAMED = "its name, the beginning of it, latest, or its folder"


@task(
    "evaluate a policy",
    words("suite", f"{SUITES}; all: those of {HOME.title}'s table", SEVERAL),
    Flag(
        "policy",
        f"auto (the policy service that is up, else {HOME.fallback}), a service's name, a URL, or several: URL,URL",
        Checked(evaluation.check_policies, "WHICH"),
        default="auto",
        repeats=True,
    ),
    Flag("trials", "episodes per task", Number(f"[1, {EPISODES}]"), otherwise="the profile's"),
    Flag("tasks", "which tasks: numbers, ranges, names or instructions", Ranges(names=True), otherwise="all"),
    Flag("episodes", "which init states, instead of --trials", Ranges(EPISODES, shown="0-9,12")),
    Flag(
        "workers",
        "simulator processes; 0, with --listen: only those that join",
        Number("[0, inf)"),
        otherwise="one per core, more beside a slow policy",
    ),
    Flag("video", "all, failures, sample or none", OneOf(("all", "failures", "sample", "none")), otherwise="sample"),
    Flag("resume", "go on with a run; without a name: the latest one like this", RESUMED, may_stand_alone=True),
    Flag("run-id", "name of the run", NEW_ID, otherwise="made of suite, policy and a number"),
    Flag("profile", "protocol", OneOf(PROFILES), otherwise=f"the policy's own, else {HOME.profiles[0]}"),
    GPU,
    RUNTIME,
    DRY_RUN,
    NO_CHECK,
    *advanced(
        Flag(
            "replicas",
            "start so many of --policy for this evaluation, on a GPU each as far as there are enough",
            Number("[1, 256]"),
        ),
        Flag("seed", "seed of the fixture poses", Number("[0, 4294967295]"), otherwise="the profile's"),
        Flag("unnorm-key", "statistics the policy un-normalises with", otherwise="the suite's"),
        Flag(
            "execute",
            "steps from one question to the policy to the next",
            Number("[1, inf)"),
            otherwise="the profile's, else as many as a chunk has",
        ),
        Flag(
            "ensemble",
            "of chunks that overlap: newest, mean or exponential; asks every step, or as often as --execute says",
            OneOf(("newest", "mean", "exponential")),
            otherwise="a chunk ends where the next begins",
        ),
        Flag(
            "ensemble-weight",
            "m of --ensemble exponential: w_i = exp(-m·i), the oldest first",
            Number("(-inf, inf)", float, "M"),
            otherwise="ACT's 0.01",
        ),
        Flag(
            "realtime",
            "steps per second of a world that moves on while the policy thinks",
            Number("(0, inf)", float, "RATE"),
            otherwise="it waits",
        ),
        Flag("max-steps", "step limit of an episode instead of the profile's", Number("[1, inf)")),
        Flag(
            "cameras",
            "cameras to send beside those the policy asks for",
            Several(OneOf(CAMERAS), joined=True),
            otherwise="none",
        ),
        Flag("render", "cpu, gpu or auto", OneOf(("cpu", "gpu", "auto")), otherwise="auto"),
        Flag("assets", "asset folder, official or kit", Existing(("official", "kit")), otherwise="the best there is"),
        Flag(
            "retries",
            "further tries for an episode that an infrastructure error ended",
            Number("[0, inf)"),
            otherwise="2",
        ),
        Flag(
            "policy-errors",
            "what an answer that cannot be executed does: stop, or fail its episode",
            OneOf(("stop", "fail")),
            otherwise="stop",
        ),
        Flag(
            "policy-timeout-s",
            "how long to wait for the policy to get ready, at the start and when it goes away",
            Number("[0, inf)", float, "SECONDS"),
            otherwise="600",
        ),
        Flag(
            "act-timeout-s",
            "how long one answer of the policy may take",
            Number("[0.1, inf)", float, "SECONDS"),
            otherwise="120",
        ),
        Flag(
            "start-timeout-s",
            "how long a simulator process may take to start",
            Number("[1, inf)", float, "SECONDS"),
            otherwise="300",
        ),
        Flag(
            "scene-timeout-s",
            "how long it may take to build a task's scene",
            Number("[1, inf)", float, "SECONDS"),
            otherwise="300",
        ),
        Flag("allow-other-suite", "evaluate a checkpoint on a suite it was not made for", default=False),
        Flag("allow-drift", "go on with a run although something it depends on changed", default=False),
        Flag("listen", "let other machines join this run at that address", Checked(joining.check_address, "HOST:PORT")),
        Flag(
            "cluster",
            "have workers placed on the machines of a cluster (./lab cluster); without its head's address: this "
            "machine's",
            Checked(placing.check, "HEAD"),
            may_stand_alone=True,
        ),
        Flag(
            "join", "work on the run of the evaluator that listens there; no SUITE", Checked(joining.check_url, "URL")
        ),
    ),
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
    _refuse_two_of(evaluators, "trials", "episodes", "choose episodes")
    _refuse_two_of(evaluators, "run_id", "resume", "name a run")
    evaluation.check_replicas(replicas, policy)
    if evaluators["resume"] is True and len(suite) == 1:
        runs_there.require("run")
    chosen, typed = several.chosen(suite), ["./lab", *sys.argv[1:]]
    if not chosen:
        raise LabError(f"eval needs SUITE ({SUITES}; all: those of {HOME.title}'s table). See: ./lab eval --help")
    if evaluators["workers"] == 0 and not evaluators["listen"]:
        raise LabError("--workers 0 leaves all to machines that join, which takes --listen; expected 1 or more")
    if evaluators["listen"]:
        runtime = joining.runtime_to_listen(runtime, str(evaluators["listen"]), chosen)
    placed = placing.prepare(runtime, cluster, policy, evaluators, replicas) if cluster else None
    if placed:
        runtime, evaluators = placed.runtime, evaluators | placed.flags
    flags, beside = tuple(flags_of(evaluators)), placed.beside if placed else nullcontext
    elsewhere = placed.policies if placed and replicas else None
    request = evaluation.Request(
        chosen[0], policy, runtime, flags, dry_run, gpu, beside=beside, replicas=replicas or 0, elsewhere=elsewhere
    )
    one = len(chosen) == 1
    code = evaluation.run(request, shlex.join(typed)) if one else several.run(request, chosen, typed)
    if placed and placed.why:  # where lines of progress were drawn it may have been seen for a moment
        raise LabError(f"the cluster stopped this evaluation: {placed.why}")
    finish(code)


def _refuse_two_of(given: dict[str, object], one: str, other: str, what: str) -> None:
    if given[one] is not None and given[other] not in (None, False):
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in (one, other))
        raise LabError(f"{flags} both {what}; give one of them")


DATASET = Flag("dataset", "a name under datasets/ on the volume, or a path", Checked(datasets.dataset, "NAME"))
POLICY = word(
    "policy",
    "a service's name or a URL; auto: the policy service that is up",
    Checked(evaluation.check_policy, "POLICY"),
)
ONE_CHECKPOINT = Flag(
    "checkpoint", "for a policy that is started: a folder under checkpoints/ on the volume, or a path", CHECKPOINT
)
ASKING = (  # of a policy about recorded data
    Flag("seed", "of the noise that a policy's actions start from", Number("[0, inf)"), otherwise="0"),
    Flag("cameras", "the policy's cameras in the data set, where names do not tell", Text("CAMERA=FILM,…")),
    Flag("unnorm-key", "statistics the policy un-normalises with, where it has several"),
    Flag("name", "folder of the results under logs/offline on the volume", FOLDER_NAME, otherwise="made of both names"),
    ONE_CHECKPOINT,
    GPU,
    RUNTIME,
    DRY_RUN,
)


@task(
    "score on recordings",
    POLICY,
    DATASET,
    Flag("plot", "draw each episode's curves", default=False),
    Flag("episodes", "which ones", Ranges(shown="0-9,12"), otherwise="the first ten"),
    Flag("steps", "at most so many of an episode", Number("[1, inf)"), otherwise="to its end"),
    Flag("execute", "ask again after so many steps", Number("[1, inf)"), otherwise="the whole chunk"),
    Flag("swap", "what each episode is told instead of its own instruction", otherwise="another one of the data set"),
    *ASKING,
)
def offline(policy: str, dataset: str | None, **asking: object) -> None:
    """Compare what a policy would do with what was recorded: errors by dimension, key and episode, and does it listen?

    ./lab offline gr00t --dataset small --plot
    ./lab offline http://host:8000 --dataset ~/data/so100 --episodes 0-4 --cameras front=observation.images.top
    """
    _ask("offline", policy, dataset, asking)


@task(
    "ask for one action",
    POLICY,
    DATASET,
    Flag("index", "which row of the data set", Number("[0, inf)"), default=0),
    Flag("swap", "what it is told instead of the recorded instruction"),
    *ASKING,
)
def act(policy: str, dataset: str | None, **asking: object) -> None:
    """Show a policy one recorded moment: what it saw and was told, its chunk of actions, and what was done.

    ./lab act gr00t --dataset small --index 0
    """
    _ask("act", policy, dataset, asking)


def _ask(task: str, policy: str, dataset: str | None, given: dict[str, object]) -> None:
    """Runs the program that asks a policy about recorded data."""
    if not dataset:
        raise LabError(f"{task} needs --dataset: a name under datasets/ on the volume, or a path")
    asked = {name: given.pop(name) for name in ("gpu", "runtime", "dry_run", "checkpoint")}
    flags = tuple(flags_of({"dataset": dataset, **given}))
    request = evaluation.Request(None, policy, flags=flags, module=HOME.offline, **asked)
    finish(evaluation.run(request, shlex.join(["./lab", *sys.argv[1:]])))


@task(
    "build or serve reports",
    words("run", f"a run: {NAMED}", RUN, default=None),
    Flag("serve", "show reports in a browser, also one on another machine; without RUN a list of all", default=False),
    RUNTIME,
)
def report(run: str | None, serve: bool, runtime: str) -> None:
    """Build a run's report again from its store; with --serve, start the service that shows reports.

    ./lab report latest
    ./lab report --serve                          all runs, and how to see them from another machine
    ./lab report latest --serve                   this one; then: ./lab down reports
    """
    viewing.check_run(run, serve)
    if run:
        on_runs(["report", run], runtime)
    if serve:
        viewing.serve(run, runtime)


@task(
    "compare two runs",
    word("a", f"a run: {NAMED}", RUN),
    word("b", "another", RUN),
    Flag("force", "also an incomplete run, a run with itself, other robots or control frequencies", default=False),
    RUNTIME,
)
def compare(a: str, b: str, force: bool, runtime: str) -> None:
    """Test two runs against each other, paired by episode.

    ./lab compare libero_goal-oracle-1 libero_goal-random-1
    """
    on_runs(["compare", a, b, *(["--force"] if force else [])], runtime)


@task(
    "policies × suites",
    words(
        "suite",
        f"only these suites ({SUITES}); default: all that have runs",
        Several(OneOf(tuple(manifests.suites()), aliases=manifests.suite_aliases()), "SUITE …"),
    ),
    Flag("csv", "write the figures to a file for a spreadsheet", NewFile((".csv",))),
    Flag("html", "write the tables to a page that needs nothing beside it", NewFile((".html", ".htm"))),
    RUNTIME,
)
def leaderboard(suite: list[str], csv: Path | None, html: Path | None, runtime: str) -> None:
    """Set policies against each other over suites: rates with 95 % intervals, and nothing incomparable side by side.

    ./lab leaderboard                             every complete run
    ./lab leaderboard libero_goal libero_10       two suites
    ./lab leaderboard --csv all.csv --html all.html
    """
    runs_there.require("run")
    files = {"--csv": csv, "--html": html}
    # folder and name apart: a container is shown the folder
    written = [word for flag, file in files.items() if file for word in (flag, str(file.parent), file.name)]
    on_runs(["leaderboard", *suite, *written], runtime)


def on_runs(words: list[str], runtime: str) -> None:
    """Runs the evaluator's program for runs that are there."""
    finish(programs.run_module(manifests.default_job(), evaluation.RUNS, words, runtime))
