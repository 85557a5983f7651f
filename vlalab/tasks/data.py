"""Tasks that bring what the others work with: checkpoints, assets, demonstrations, data sets; and what lies there."""

from __future__ import annotations

import sys

from vlalab.commands import evaluation, programs
from vlalab.description import datasets, manifests
from vlalab.host.borrowed import option
from vlalab.host.console import LabError, agreed
from vlalab.tasks import evaluate
from vlalab.tasks.flags import Runtime, of_benchmarks, of_models, positional, program_flags
from vlalab.tasks.task import finish, task

CHECKPOINT_OPTIONS = "vla_modelkit.checkpoint_options:CheckpointOptions"  # of every model's program


@task(
    "get a model's weights", "./lab up {model}", "runtime dry-run", options=of_models("checkpoint", CHECKPOINT_OPTIONS)
)
def checkpoint(model: str = positional(kind="model", keywords=("getter",)), **options: object) -> None:
    """Download a checkpoint onto the volume, or make a tiny one to try things with.

    ./lab checkpoint openvla --suite libero_goal     15 GB; then: ./lab up openvla --suite libero_goal
    ./lab checkpoint openvla --tiny     then: ./lab up openvla --checkpoint openvla-tiny
    ./lab checkpoint gr00t --repo OWNER/NAME --embodiment libero_mean_std     another one, and its scale
    """
    finish(programs.run(model, manifests.models()[model].getter, [], options))


@task("get meshes, textures", "./lab eval libero_goal --trials 2", "runtime dry-run")
def assets(
    target: str = positional(help="a benchmark (download its official files), kit (make the project's own), or status",
                     kind="assets"),
    all: bool = option(
        False, "with the official files, what the suites that disturb others need (LIBERO-PRO's objects: 360 MB more "
        "to download; LIBERO-plus's difficulties)",
    ),
    verify: bool = option(False, "status reads every file, also those that have not changed since they were last read"),
    **options: object,
) -> None:  # fmt: skip
    """Get the simulator's meshes and textures.

    ./lab assets libero         the official files: resumes, checks each
    ./lab assets libero --all   LIBERO-PRO's objects too, and LIBERO-plus's difficulties
    ./lab assets status         which ones a run would use
    """
    getters = programs.asset_getters()
    job = target if target in getters else next(iter(getters))
    arguments = ["official" if target == job else target]
    finish(programs.run(job, getters[job], arguments, {"all": all, "verify": verify, **options}))


@task(
    "record demonstrations",
    "./lab dataset {name} --format lerobot",
    "gpu runtime dry-run no-check",
    options=lambda: program_flags(f"{evaluate.CONFIG}:RecordConfig"),
)
def record(
    suite: str = evaluate.SUITE,
    policy: str | None = option(
        None, "a policy service's name, or a URL", kind="policy", default_help="the benchmark's own (oracle)"),
    gpu: str | None = None,
    runtime: str = "auto",
    dry_run: bool = False,
    **recorder_options: object,
) -> None:  # fmt: skip
    """Record demonstrations to learn from, on starts that no evaluation uses; ends with how many were kept.

    ./lab record libero_goal --episodes 100 --name goal-oracle     the oracle's; the same again goes on
    ./lab record libero_goal --name recovery --noise 0.2     disturbed, with the oracle's answer to it
    ./lab record libero_object --policy http://host:8000     any policy's successes
    """
    policy = policy or manifests.benchmarks()[manifests.job_of(suite)].fallback
    flags = tuple(programs.flags_of(recorder_options))
    finish(evaluation.run(evaluation.EvaluationRequest(suite, policy, runtime, flags, dry_run, gpu, ("record",))))


@task("make, check, show data", "./lab dataset {source} --show", "runtime dry-run", options=of_benchmarks("dataset"))
def dataset(
    source: str = positional(help="a recording, a run or a data set: its name or its folder", kind="source"),
    **options: object,
) -> None:
    """Make a data set to train on, of a recording or a run; or say what is in one, check it, show it.

    ./lab dataset goal-oracle --format lerobot --size 128     of a recording; the same again goes on
    ./lab dataset libero_goal-oracle-1 --format hdf5     of a run: to look at, not to learn from
    ./lab dataset goal-oracle --check
    ./lab dataset goal-oracle --show
    ./lab dataset goal-oracle --bad 3,7-9     training leaves these out; --good takes it back
    """
    alone = [name for name in ("name", "size", "cameras", "workers", "keep_failures", "render") if options[name]]
    if alone and not options["format"]:
        flag = f"--{alone[0].replace('_', '-')}"
        raise LabError(f"{flag} says how a data set is made; add --format lerobot, or leave it out")
    job = (datasets.job_of(source) if options["format"] else None) or manifests.default_job()
    benchmark = manifests.benchmarks()[job]
    if not benchmark.datasets:
        raise LabError(f"{source} is of {benchmark.title}, of whose episodes no data set is made")
    finish(programs.run(job, benchmark.datasets, [source], options))


@task(
    "what a model may learn", "./lab finetune {model} --dataset {dataset}", "runtime dry-run", options=of_models("data")
)
def data(model: str = positional(kind="model", keywords=("data",)), **options: object) -> None:
    """Say what is in a data set for a model: schema, episodes, tasks, statistics, and a page with films and curves.

    ./lab data gr00t --dataset goal-oracle
    ./lab data gr00t --dataset goal-oracle --check --embodiment libero
    ./lab data gr00t --download gr1_arms_only.CanSort
    """
    if not (options["dataset"] or options["download"]):
        raise LabError("data needs --dataset NAME, or --download NAME to get one. See: ./lab data --help")
    if options["dataset"] and options["download"]:
        raise LabError("--dataset and --download both name a data set; give one of them")
    finish(programs.run(model, manifests.models()[model].data, [], options))


@task("list the runs", "./lab report latest --serve", "runtime")
def runs(
    delete: list[str] = option(
        (), "runs, recordings or trained models to delete: shows their size and asks", kind="stored"),
    yes: bool = option(False, "delete without asking"),
    runtime: Runtime = "auto",
) -> None:  # fmt: skip
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
