"""Tasks of who looks after the lab: tests, images, bundles, environments, locks, benchmarks."""

from __future__ import annotations

from pathlib import Path

from vlalab.bundles import packing, restoring
from vlalab.commands import programs
from vlalab.description import manifests
from vlalab.engine import building, cleaning
from vlalab.environments import locks, venvs
from vlalab.host.console import LabError
from vlalab.tasks.flags import DRY_RUN, NO_CHECK, RUNTIME, Flag, finish, flags_of, task, word, words
from vlalab.tasks.values import Number, OneOf, Several, Text
from vlalab.testing import parts as test_parts
from vlalab.testing import run as test_run

NAMES = Several(shown="NAME …")


@task(
    "test what runs here",
    lambda: [
        words("parts", f"all, {', '.join(test_run.NAMES)}; default: all", Several(shown="PART …")),
        Flag("quick", "linter, host tool, and the contract in one Python only", default=False),
        Flag("nightly", "also the tests that are too long for every change", default=False),
        Flag(
            "minutes",
            "how long part chaos attacks this lab's own evaluations and services",
            Number(f"(0, {test_parts.MAX_MINUTES}]", float),
            default_help="2.5",
        ),
        Flag("seed", "which attacks it draws", Number(), default_help="new ones, and the seed is printed"),
        RUNTIME.replace(help="where the tests of environments run: docker (inside their images), local, or auto"),
    ],
)
def test(parts: list[str], quick: bool, nightly: bool, minutes: float | None, seed: int | None, runtime: str) -> None:
    """Run all tests that this machine can run; says what it skips and why.

    ./lab test                          everything
    ./lab test lint host                some parts
    ./lab test libero --runtime docker  an environment's tests, inside its image
    ./lab test --quick                  what needs no environment: about a minute
    ./lab test --nightly                everything, and what is too long for every change
    ./lab test chaos --minutes 30       attack evaluations and services for longer; --seed 7 repeats one
    """
    finish(test_run.run(parts, test_parts.Options(quick, runtime, minutes, seed, nightly)))


@task(
    "what is wrong here",
    lambda: [
        words(
            "names",
            "environments to look at closely, by their own self-tests",
            Several(OneOf(tuple(manifests.environments())), "ENV …"),
        ),
        Flag("json", "print one JSON object (docs/doctor.md) instead of the table", default=False),
        Flag("fix", "mend what is safe to mend, and ask before the rest", default=False),
        Flag("yes", "with --fix: mend all of it without asking", default=False),
        Flag("offline", "this machine has no network: do not look for one", default=False),
    ],
)
def doctor(names: list[str], json: bool, fix: bool, yes: bool, offline: bool) -> None:
    """Examine machine, Docker, GPUs, network and clone: what is wrong, what it means, what to type.

    ./lab doctor                 everything that is known within seconds
    ./lab doctor openvla libero  these environments too, from inside: versions, kernels, a drawn scene
    ./lab doctor --fix           set modes and owners right, and offer the other commands
    """
    from vlalab.commands import examining

    if yes and not fix:
        raise LabError("--yes says yes to what --fix would ask; give both")
    finish(examining.doctor(names, json, fix, yes, offline))


@task(
    "build images",
    lambda: [
        words("names", "environments, or all; default: all", NAMES),
        Flag("no-cache", "build every layer anew", default=False),
        Flag(
            "flash-attn",
            "prebuilt (the release's wheel), compile (hours), or none",
            OneOf(building.FLASH_ATTN),
            default_help="prebuilt",
        ),
        Flag("base", "base image instead of the pinned one; also VLALAB_BASE or VLALAB_BASE_<ENV>"),
        *(Flag(name, stage.help) for name, stage in manifests.stages().items()),
        Flag(
            "ca-bundle",
            "certificates (PEM) of this network's authority, or none",
            default_help="what this machine trusts",
        ),
        Flag("index", "file that holds the URL of a package index mirror; also variable VLALAB_INDEX"),
        Flag("arg", "further build arguments as NAME=VALUE,… (docs/images.md)", default="", repeats=True),
        Flag("progress", "line, plain (everything) or tty", OneOf(building.PROGRESS), default="line"),
        DRY_RUN.replace(help="print the command, build nothing"),
        NO_CHECK,
    ],
)
def build(names: list[str], arg: str, **options: object) -> None:
    """Build images from their locks; ends with each one's size.

    ./lab build libero ui
    ./lab build all --flash-attn none
    ./lab build gr00t --ca-bundle /srv/ca.pem --index /srv/index-url
    """
    arguments = tuple(word for word in arg.split(",") if word)
    stages = {name: options.pop(name.replace("-", "_")) for name in manifests.stages()}
    building.build(names, building.Options(arguments=arguments, stages=stages, **options))


@task(
    "pack all for offline",
    lambda: [
        words("words", "environments, or all that are built, and last the file to write", Text("ENV … FILE")).replace(
            default=""
        ),
        Flag("checkpoints", "names of folders under checkpoints/ on the volume, or all", Several(), default=()),
        Flag(
            "assets",
            "names of folders under assets/ on the volume, or all",
            Several(),
            default_help="a benchmark's with its image",
        ),
        Flag(
            "host",
            "leave out the lab itself and its packages, with which the other machine needs no network",
            default=True,
        ),
        DRY_RUN.replace(help="show what would go into it"),
    ],
)
def bundle(words: str, checkpoints: list[str], assets: list[str] | None, host: bool, dry_run: bool) -> None:
    """Write images, checkpoints, assets and the lab itself into one file, for a machine without network.

    ./lab bundle libero ui /media/stick/lab.bundle
    ./lab bundle all /media/stick/lab.bundle --checkpoints all --assets all
    ./lab bundle /tmp/weights.bundle --checkpoints openvla-7b-finetuned-libero-goal
    """
    names, file = packing.parse_words(words)
    chosen = packing.default_assets(names) if assets is None else assets
    packing.bundle(packing.Request(names, file, tuple(checkpoints), tuple(chosen), host, dry_run))


@task(
    "unpack a bundle",
    lambda: [
        word("file", "what ./lab bundle made"),
        Flag("force", "replace images and files that are newer here", default=False),
        DRY_RUN.replace(help="show what it would bring"),
    ],
)
def restore(file: str, force: bool, dry_run: bool) -> None:
    """Check a bundle's every part, load its images and put its files onto the volume.

    ./lab restore /media/stick/lab.bundle
    """
    restoring.restore(Path(file).expanduser().absolute(), force, dry_run)


@task(
    "remove left-overs",
    lambda: [
        Flag("venvs", "the local environments (images/*/.venv, admin/.venv, cluster/.venv) too", default=False),
        Flag("all-users", "old images that others built, or another clone, too", default=False),
        Flag("yes", "remove all of it without asking", default=False),
        DRY_RUN.replace(help="only show it"),
    ],
)
def clean(venvs: bool, all_users: bool, yes: bool, dry_run: bool) -> None:
    """Show what old images, build cache and local environments take, and remove what you say.

    ./lab clean                 asks for each kind of thing; the volume is never touched
    ./lab clean --venvs --yes
    """
    cleaning.clean(venvs, yes, dry_run, all_users)


@task(
    "run a benchmark",
    lambda: [
        word("benchmark", "which one", OneOf(programs.benchmarks())),
        Flag("quick", "at most a minute", default=False),
        Flag("options", "flags of its program, in quotes; --options=--help lists them"),
    ],
    more=lambda: {"The benchmarks, with results in bench/RESULTS.md:": programs.described_benchmarks()},
)
def bench(benchmark: str, quick: bool, options: str | None) -> None:
    """Run a benchmark; its results are the lines that begin with FIGURE.

    ./lab bench sim --quick
    ./lab bench openvla --options "--busy 2"
    """
    finish(programs.run_benchmark(benchmark, [*flags_of({"quick": quick}), *programs.words_of(options or "")]))


@task(
    "make an environment", lambda: [words("names", f"environments; default: {manifests.default_environment()}", NAMES)]
)
def env(names: list[str]) -> None:
    """Make an environment from its lock, as eval and test do on first use.

    ./lab env libero
    """
    for name in names or [manifests.default_environment()]:
        print(venvs.ensure(name).python)


@task(
    "pin packages",
    lambda: [
        words("names", "host, contract or an environment; default: all", NAMES),
        Flag("check", "change nothing; fail when a lock does not fit its requirements.in", default=False),
        Flag("licences", "change no lock; write the packages' licences into THIRD_PARTY.md", default=False),
        Flag("upgrade", "take the newest versions that fit, not the ones already pinned", default=False),
    ],
)
def lock(names: list[str], check: bool, licences: bool, upgrade: bool) -> None:
    """Make requirements.lock from requirements.in: exact versions with hashes.

    ./lab lock libero           after a change in images/libero/requirements.in
    ./lab lock --check          fails when any lock and its requirements.in disagree
    ./lab lock --licences       after a new lock of an image: its packages' licences, into THIRD_PARTY.md
    """
    if licences:
        from vlalab.environments import licences as licence_table

        print(f"{licence_table.FILE}: {licence_table.write()} packages")
        return
    chosen = locks.choose(names)
    if not check:
        for wanted in chosen:
            print(f"{wanted.name}: {'new lock' if locks.make(wanted, upgrade) else 'unchanged'}")
        return
    if found := [problem for wanted in chosen for problem in locks.problems(wanted)]:
        raise LabError("\n  ".join(["locks and requirements disagree:", *found]))
    print(f"{len(chosen)} locks fit their requirements")
