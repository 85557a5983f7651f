"""Tasks for checkpoints, assets, demonstrations, data sets and stored runs."""

from __future__ import annotations

import sys

from vlalab.commands import evaluation, programs
from vlalab.description import datasets, manifests
from vlalab.host.console import LabError, confirm
from vlalab.host.shared_code import option
from vlalab.tasks import evaluate
from vlalab.tasks.flags import Runtime, flags_for, positional, program_flags
from vlalab.tasks.task import finish, task

CHECKPOINT_OPTIONS = "vla_modelkit.checkpoint_options:CheckpointOptions"  # common to all models


@task("download a checkpoint", "./lab up {model}", "runtime dry-run", flags_for("checkpoint", CHECKPOINT_OPTIONS))
def checkpoint(model: str = positional(kind="model", keywords=("getter",)), **options: object) -> None:
    """Download a checkpoint to the volume, or create a tiny one for tests.

    ./lab checkpoint openvla --suite libero_goal     15 GB; then: ./lab up openvla --suite libero_goal
    ./lab checkpoint openvla --tiny     then: ./lab up openvla --checkpoint openvla-tiny
    ./lab checkpoint gr00t --repo OWNER/NAME --embodiment libero_mean_std     another one and its statistics
    """
    finish(programs.run(model, manifests.models()[model].getter, [], options))


@task("get simulator assets", "./lab eval libero_goal --trials 2", "runtime dry-run")
def assets(
    target: str = positional(help="a benchmark (download its official files), kit (create substitutes), or status",
                     kind="assets"),
    all: bool = option(
        False, "with the official files, also those of perturbed suites (LIBERO-PRO's objects: 360 MB more to "
        "download; LIBERO-plus's difficulties)",
    ),
    verify: bool = option(False, "with status: hash every file, even if unchanged since the last check"),
    **options: object,
) -> None:  # fmt: skip
    """Get the simulator's meshes and textures.

    ./lab assets libero         the official files; resumes, verifies each
    ./lab assets libero --all   with LIBERO-PRO's objects and LIBERO-plus's difficulties
    ./lab assets status         show which assets a run would use
    """
    getters = programs.asset_getters()
    job = target if target in getters else next(iter(getters))
    arguments = ["official" if target == job else target]
    finish(programs.run(job, getters[job], arguments, {"all": all, "verify": verify, **options}))


@task(
    "record demonstrations",
    "./lab dataset {name} --format lerobot",
    "gpu runtime dry-run no-check",
    lambda: program_flags("vla_evaluation.config:RecordConfig"),
)
def record(
    suite: str = evaluate.SUITE,
    policy: str | None = option(
        None, "a policy service's name, or a URL", kind="policy", default_help="the benchmark's own (oracle)"),
    **options: object,
) -> None:  # fmt: skip
    """Record demonstrations for training, from start states that no evaluation uses; prints how many succeeded.

    ./lab record libero_goal --episodes 100 --name goal-oracle     repeat the command to resume
    ./lab record libero_goal --name recovery --noise 0.6     with pushes, and the oracle's corrections
    ./lab record libero_object --policy http://host:8000     successful episodes of any policy
    """
    policy = policy or manifests.benchmarks()[manifests.job_of(suite)].fallback
    run_options, flags = programs.split_options(options)
    finish(evaluation.run(evaluation.EvaluationRequest(suite, policy, flags=flags, program=("record",), **run_options)))


@task("build a data set", "./lab dataset {source} --show", "runtime dry-run", flags_for("dataset"))
def dataset(
    source: str = positional(help="name or directory of a recording, a run or a data set", kind="source"),
    **options: object,
) -> None:
    """Create a training data set from a recording or a run; or describe, check or show one.

    ./lab dataset goal-oracle --format lerobot --size 128     from a recording; repeat to resume
    ./lab dataset libero_goal-oracle-1 --format hdf5     from a run: to inspect, not to train on
    ./lab dataset goal-oracle --check
    ./lab dataset goal-oracle --show
    ./lab dataset goal-oracle --bad 3,7-9     exclude these from training; --good reverts
    """
    for name in ("name", "size", "cameras", "workers", "keep_failures", "render"):
        if options[name] and not options["format"]:
            raise LabError(f"--{name.replace('_', '-')} requires --format, for example --format lerobot")
    job = (datasets.job_of(source) if options["format"] else None) or manifests.default_job()
    benchmark = manifests.benchmarks()[job]
    if not benchmark.datasets:
        raise LabError(f"{source} is of {benchmark.title}, whose episodes cannot be converted to a data set")
    finish(programs.run(job, benchmark.datasets, [source], options))


@task("inspect training data", "./lab finetune {model} --dataset {dataset}", "runtime dry-run", flags_for("data"))
def data(model: str = positional(kind="model", keywords=("data",)), **options: object) -> None:
    """Describe a model's data set: schema, episodes, tasks, statistics, and a page with videos and curves.

    ./lab data gr00t --dataset goal-oracle
    ./lab data gr00t --dataset goal-oracle --check --embodiment libero
    ./lab data gr00t --download gr1_arms_only.CanSort
    """
    if bool(options["dataset"]) == bool(options["download"]):
        raise LabError("data requires either --dataset NAME, or --download NAME to get one. See: ./lab data --help")
    finish(programs.run(model, manifests.models()[model].data, [], options))


@task("list runs", "./lab report latest --serve", "runtime")
def runs(
    delete: list[str] = option((), "runs, recordings or trained models to delete, after confirmation", kind="stored"),
    yes: bool = option(False, "do not ask for confirmation"),
    runtime: Runtime = "auto",
) -> None:
    """List the evaluation runs, recorded demonstrations and trained models on the volume.

    ./lab runs
    ./lab runs --delete libero_goal-oracle-1     show its size, and ask
    """
    if not delete:
        return evaluate.on_runs(["list"], runtime)
    if not yes:
        evaluate.on_runs(["size", *delete], runtime)
        if not sys.stdin.isatty():
            raise LabError("cannot ask for confirmation without a terminal; add --yes to delete")
        if not confirm("delete permanently?"):
            raise LabError("nothing was deleted")
    evaluate.on_runs(["remove", *delete], runtime)
