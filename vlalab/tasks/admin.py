"""Tasks of who looks after the lab: tests, images, bundles, environments, locks, benchmarks."""

from __future__ import annotations

from pathlib import Path

from vlalab.bundles import packing, restoring
from vlalab.commands import programs
from vlalab.description import manifests
from vlalab.engine import building, cleaning
from vlalab.environments import locks, venvs
from vlalab.host.borrowed import option
from vlalab.host.console import LabError
from vlalab.tasks.flags import Flag, Runtime, positional
from vlalab.tasks.task import finish, task
from vlalab.testing import parts as test_parts
from vlalab.testing import run as test_run

DEFAULT_ENVIRONMENT = manifests.default_environment()


@task("test what runs here", "./lab eval libero_goal --trials 2")
def test(
    parts: list[str] = positional(help=f"all, {', '.join(test_run.NAMES)}; default: all", metavar="PART"),
    quick: bool = option(False, "linter, host tool, and the contract in one Python only"),
    nightly: bool = option(False, "also the tests that are too long for every change"),
    minutes: float | None = option(
        None, "how long part chaos attacks this lab's own evaluations and services", f"(0, {test_parts.MAX_MINUTES}]",
        default_help="2.5"),
    seed: int | None = option(None, "which attacks it draws", default_help="new ones, and the seed is printed"),
    runtime: Runtime = option("auto", "where environments' tests run: docker (inside their images), local, or auto"),
) -> None:  # fmt: skip
    """Run all tests that this machine can run; says what it skips and why.

    ./lab test                          everything
    ./lab test lint host                some parts
    ./lab test libero --runtime docker  an environment's tests, inside its image
    ./lab test --quick                  what needs no environment: about a minute
    ./lab test --nightly                everything, and what is too long for every change
    ./lab test chaos --minutes 30       attack the lab for longer; --seed 7 repeats one
    """
    finish(test_run.run(parts, test_parts.Options(quick, runtime, minutes, seed, nightly)))


@task("what is wrong here", f"./lab doctor {DEFAULT_ENVIRONMENT}")
def doctor(
    names: list[str] = positional(help="environments to look at closely, by their own self-tests", metavar="ENV",
                            kind="environment"),
    json: bool = option(False, "print one JSON object (docs/doctor.md) instead of the table"),
    fix: bool = option(False, "mend what is safe to mend, and ask before the rest"),
    yes: bool = option(False, "with --fix: mend all of it without asking"),
    offline: bool = option(False, "this machine has no network: do not look for one"),
) -> None:  # fmt: skip
    """Examine machine, Docker, GPUs, network and clone: what is wrong, what it means, what to type.

    ./lab doctor                 everything that is known within seconds
    ./lab doctor openvla libero  these environments too, from inside: versions, kernels, a drawn scene
    ./lab doctor --fix           set modes and owners right, and offer the other commands
    """
    from vlalab.commands import examining  # all checks, which other tasks need not load

    if yes and not fix:
        raise LabError("--yes says yes to what --fix would ask; give both")
    finish(examining.doctor(names, json, fix, yes, offline))


def _stages() -> list[Flag]:
    return [Flag(name.replace("-", "_"), str, (), None, stage.help) for name, stage in manifests.stages().items()]


@task("build images", "./lab up SERVICE --runtime docker", "no-check", options=_stages)
def build(
    names: list[str] = positional(help="environments, or all; default: all", metavar="NAME"),
    no_cache: bool = option(False, "build every layer anew"),
    flash_attn: str | None = option(
        None, "prebuilt (the release's wheel), compile (hours), or none", kind="one of", keywords=building.FLASH_ATTN,
        default_help="prebuilt"),
    base: str | None = option(None, "base image instead of the pinned one; also VLALAB_BASE or VLALAB_BASE_<ENV>"),
    ca_bundle: str | None = option(
        None, "certificates (PEM) of this network's authority, or none", default_help="what this machine trusts"),
    index: str | None = option(None, "file that holds the URL of a package index mirror; also variable VLALAB_INDEX"),
    arg: list[str] = option((), "further build arguments as NAME=VALUE,… (docs/images.md)"),
    progress: str = option("line", "line, plain (everything) or tty", kind="one of", keywords=building.PROGRESS),
    dry_run: bool = option(False, "print the command, build nothing"),
    **stages: str,
) -> None:  # fmt: skip
    """Build images from their locks; ends with each one's size.

    ./lab build libero ui
    ./lab build all --flash-attn none
    ./lab build gr00t --ca-bundle /srv/ca.pem --index /srv/index-url
    """
    stages = {name.replace("_", "-"): directory for name, directory in stages.items()}
    options = building.Options(no_cache, flash_attn, base, stages, ca_bundle, index, tuple(arg), progress, dry_run)
    building.build(names, options)


@task("pack all for offline", "./lab restore FILE")
def bundle(
    arguments: list[str] = positional(help="environments, or all that are built, and last the file to write",
                            metavar="ENV … FILE"),
    checkpoints: list[str] = option((), "names of folders under checkpoints/ on the volume, or all"),
    assets: list[str] | None = option(
        None, "names of folders under assets/ on the volume, or all", default_help="a benchmark's with its image"),
    no_host: bool = option(
        False, "leave out the lab itself and its packages, with which the other machine needs no network"),
    dry_run: bool = option(False, "show what would go into it"),
) -> None:  # fmt: skip
    """Write images, checkpoints, assets and the lab itself into one file, for a machine without network.

    ./lab bundle libero ui /media/stick/lab.bundle
    ./lab bundle all /media/stick/lab.bundle --checkpoints all --assets all
    ./lab bundle weights.bundle --checkpoints openvla-7b-finetuned-libero-goal
    """
    names, file = packing.parse_arguments(",".join(arguments))
    selected_assets = packing.default_assets(names) if assets is None else assets
    packing.bundle(packing.BundleRequest(names, file, tuple(checkpoints), tuple(selected_assets), not no_host, dry_run))


@task("unpack a bundle", "./lab eval libero_goal --trials 2")
def restore(
    file: str = positional(help="what ./lab bundle made"),
    force: bool = option(False, "replace images and files that are newer here"),
    dry_run: bool = option(False, "show what it would bring"),
) -> None:
    """Check a bundle's every part, load its images and put its files onto the volume.

    ./lab restore /media/stick/lab.bundle
    """
    restoring.restore(Path(file).expanduser().absolute(), force, dry_run)


@task("remove left-overs", "./lab clean --venvs --dry-run")
def clean(
    venvs: bool = option(False, "the local environments (images/*/.venv, admin/.venv, cluster/.venv) too"),
    all_users: bool = option(False, "old images that others built, or another clone, too"),
    yes: bool = option(False, "remove all of it without asking"),
    dry_run: bool = option(False, "only show it"),
) -> None:
    """Show what old images, build cache and local environments take, and remove what you say.

    ./lab clean                 asks for each kind of thing; the volume is never touched
    ./lab clean --venvs --yes
    """
    cleaning.clean(venvs, yes, dry_run, all_users)


@task(
    "run a benchmark",
    "./lab bench {benchmark}",
    tables=lambda: {"The benchmarks, with results in bench/RESULTS.md": programs.described_benchmarks()},
)
def bench(
    benchmark: str = positional(help="which one", kind="one of", keywords=programs.benchmarks()),
    quick: bool = option(False, "at most a minute"),
    options: str = option("", "flags of its program, in quotes; --options=--help lists them"),
) -> None:
    """Run a benchmark; its results are the lines that begin with FIGURE.

    ./lab bench sim --quick
    ./lab bench openvla --options "--busy 2"
    """
    finish(programs.run_benchmark(benchmark, quick, options))


@task("make an environment", "./lab status")
def env(names: list[str] = positional(help=f"environments; default: {DEFAULT_ENVIRONMENT}", metavar="NAME")) -> None:
    """Make an environment from its lock, as eval and test do on first use.

    ./lab env libero
    """
    for name in names or [DEFAULT_ENVIRONMENT]:
        print(venvs.ensure(name).python)


@task("pin packages", "./lab test --quick")
def lock(
    names: list[str] = positional(help="host, contract or an environment; default: all", metavar="NAME"),
    check: bool = option(False, "change nothing; fail when a lock does not fit its requirements.in"),
    licences: bool = option(False, "change no lock; write the packages' licences into THIRD_PARTY.md"),
    upgrade: bool = option(False, "take the newest versions that fit, not the ones already pinned"),
) -> None:
    """Make requirements.lock from requirements.in: exact versions with hashes.

    ./lab lock libero           after a change in images/libero/requirements.in
    ./lab lock --check          fails when any lock and its requirements.in disagree
    ./lab lock --licences       after a new lock of an image: licences, into THIRD_PARTY.md
    """
    if licences:
        from vlalab.environments import licences as licence_table  # with packages that no other task needs

        print(f"{licence_table.FILE}: {licence_table.write()} packages")
        return
    targets = locks.choose(names)
    if not check:
        for target in targets:
            print(f"{target.name}: {'new lock' if locks.make(target, upgrade) else 'unchanged'}")
    elif problems := [problem for target in targets for problem in locks.problems(target)]:
        raise LabError("\n  ".join(["locks and requirements disagree:", *problems]))
    else:
        print(f"{len(targets)} locks fit their requirements")
