"""Administration tasks: tests, images, bundles, environments, locks, benchmarks, published figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vlalab.bundles import packing, restoring
from vlalab.commands import evaluation, programs, reproduction
from vlalab.description import manifests, variants
from vlalab.engine import building, cleaning
from vlalab.environments import locks, venvs
from vlalab.host.console import LabError
from vlalab.host.shared_code import option
from vlalab.tasks import evaluate
from vlalab.tasks.flags import Flag, Runtime, positional
from vlalab.tasks.task import finish, task
from vlalab.testing import parts as test_parts
from vlalab.testing import run as test_run

DEFAULT_ENVIRONMENT = manifests.default_environment()


@task("run the tests", "./lab eval libero_goal --trials 2")
def test(
    parts: list[str] = positional(help=f"all, {', '.join(test_run.NAMES)}; default: all", metavar="PART"),
    quick: bool = option(False, "linter, host tool, and the contract with one Python version"),
    nightly: bool = option(False, "include the long tests of the nightly run"),
    minutes: float | None = option(
        None, "duration of part chaos, which disturbs its own evaluations", f"(0, {test_parts.MAX_MINUTES}]",
        default_help="2.5"),
    seed: int | None = option(None, "seed of the disturbances", default_help="random, and printed"),
    runtime: Runtime = option("auto", "where tests of environments run: docker (in their images), local, or auto"),
) -> None:  # fmt: skip
    """Run all tests that this machine can run; prints what it skips and why.

    ./lab test                          everything
    ./lab test lint host                some parts
    ./lab test libero --runtime docker  an environment's tests, inside its image
    ./lab test --quick                  without environments: about a minute
    ./lab test --nightly                everything, long tests included
    ./lab test chaos --minutes 30       disturb a lab for longer; --seed 7 repeats a run
    """
    finish(test_run.run(parts, test_parts.SuiteOptions(quick, runtime, minutes, seed, nightly)))


@task("diagnose this machine", f"./lab doctor {DEFAULT_ENVIRONMENT}")
def doctor(
    names: list[str] = positional(help="environments to self-test", metavar="ENV", kind="environment"),
    json: bool = option(False, "print one JSON object (docs/doctor.md) instead of the table"),
    fix: bool = option(False, "repair what is safe to repair, ask before other fixes"),
    yes: bool = option(False, "with --fix: apply all fixes without asking"),
    offline: bool = option(False, "skip network checks"),
) -> None:  # fmt: skip
    """Check machine, Docker, GPUs, network and clone; for each problem print the cause and the fix.

    ./lab doctor                 all quick checks
    ./lab doctor openvla libero  self-test these environments too: versions, kernels, rendering
    ./lab doctor --fix           repair modes and owners, and offer other fixes
    """
    from vlalab.commands import doctor as doctor_command  # slow to import

    if yes and not fix:
        raise LabError("--yes requires --fix")
    finish(doctor_command.run(names, json, fix, yes, offline))


def _stages() -> list[Flag]:
    return [Flag(name.replace("-", "_"), str, (), None, stage.help) for name, stage in manifests.stages().items()]


@task("build images", "./lab up SERVICE --runtime docker", "variant no-check", _stages)
def build(
    names: list[str] = positional(help="environments, or all; default: all", metavar="NAME"),
    no_cache: bool = option(False, "rebuild every layer"),
    flash_attn: str | None = option(
        None, "prebuilt (the release's wheel), compile (hours), or none", kind="one of", keywords=building.FLASH_ATTN,
        default_help="prebuilt"),
    base: str | None = option(None, "base image instead of the pinned one; also VLALAB_BASE or VLALAB_BASE_<ENV>"),
    ca_bundle: str | None = option(
        None, "certificates (PEM) of this network's authority, or none", default_help="those this machine trusts"),
    index: str | None = option(None, "file with the URL of a package index mirror; also VLALAB_INDEX"),
    variant: str | None = None,
    arg: list[str] = option((), "further build arguments as NAME=VALUE,… (docs/images.md)"),
    progress: str = option("line", "line, plain (everything) or tty", kind="one of", keywords=building.PROGRESS),
    dry_run: bool = option(False, "print the commands without building"),
    **stages: str,
) -> None:  # fmt: skip
    """Build images from their locks and print their sizes.

    ./lab build libero ui
    ./lab build all --flash-attn none
    ./lab build openvla --variant cu130
    ./lab build gr00t --ca-bundle /srv/ca.pem --index /srv/index-url
    """
    stages = {name.replace("_", "-"): directory for name, directory in stages.items()}
    options = building.BuildOptions(no_cache, flash_attn, base, stages, ca_bundle, index, tuple(arg), progress, dry_run)
    building.build(names, options, variant)


@task("pack for offline use", "./lab restore FILE")
def bundle(
    arguments: list[str] = positional(help="environments (or all that are built), then the file to write",
                            metavar="ENV … FILE"),
    checkpoints: list[str] = option((), "names of directories in checkpoints/ on the volume, or all"),
    assets: list[str] | None = option(
        None, "names of directories in assets/ on the volume, or all", default_help="those of the bundled benchmarks"),
    no_host: bool = option(
        False, "leave out the lab itself and its packages, which a machine without network needs"),
    dry_run: bool = option(False, "list the contents without writing"),
) -> None:  # fmt: skip
    """Write images, checkpoints, assets and the lab itself into one file, for a machine without network.

    ./lab bundle libero ui /media/stick/lab.bundle
    ./lab bundle all /media/stick/lab.bundle --checkpoints all --assets all
    ./lab bundle weights.bundle --checkpoints openvla-7b-finetuned-libero-goal
    """
    names, file = packing.parse_arguments(arguments)
    assets = packing.default_assets(names) if assets is None else assets
    packing.bundle(packing.BundleRequest(names, file, tuple(checkpoints), tuple(assets), not no_host, dry_run))


@task("unpack a bundle", "./lab eval libero_goal --trials 2")
def restore(
    file: str = positional(help="a file written by ./lab bundle"),
    force: bool = option(False, "replace images and files that are newer on this machine"),
    dry_run: bool = option(False, "list the changes without making them"),
) -> None:
    """Verify a bundle, load its images and copy its files to the volume.

    ./lab restore /media/stick/lab.bundle
    """
    restoring.restore(Path(file).expanduser().absolute(), force, dry_run)


@task("free disk space", "./lab clean --venvs --dry-run")
def clean(
    venvs: bool = option(False, "include local environments (images/*/.venv, admin/.venv, cluster/.venv, hub/.venv)"),
    all_users: bool = option(False, "include old images built by other users or clones"),
    yes: bool = option(False, "remove everything without asking"),
    dry_run: bool = option(False, "list only"),
) -> None:
    """Show the size of old images, build cache and local environments, and remove what you confirm.

    ./lab clean                 asks before each removal; never changes the volume
    ./lab clean --venvs --yes
    """
    cleaning.clean(venvs, yes, dry_run, all_users)


@task(
    "run a benchmark",
    "./lab bench {benchmark}",
    tables=lambda: {"The benchmarks, with results in bench/RESULTS.md": programs.described_benchmarks()},
)
def bench(
    benchmark: str = positional(help="its name, listed below", kind="one of", keywords=programs.benchmarks()),
    quick: bool = option(False, "take at most a minute"),
    minutes: float | None = option(None, "for benchmark gpu: duration of all its parts", "(0, inf)", default_help="10"),
    options: str = option("", "flags of its program, quoted; --options=--help lists them"),
) -> None:
    """Run a benchmark; result lines begin with FIGURE.

    ./lab bench sim --quick
    ./lab bench openvla --options "--busy 2"
    ./lab bench gpu --minutes 10
    """
    if minutes is not None and benchmark != "gpu":
        raise LabError(f"--minutes is for benchmark gpu, not for {benchmark}; see its flags: --options=--help")
    flags = f"{options} --minutes {minutes:g}" if minutes is not None else options
    finish(programs.run_benchmark(benchmark, quick, flags))


@task("create an environment", "./lab status", "variant")
def env(
    names: list[str] = positional(help=f"environments; default: {DEFAULT_ENVIRONMENT}", metavar="NAME"),
    variant: str | None = None,
) -> None:
    """Create an environment from its lock, as eval and test do on first use.

    ./lab env libero
    ./lab env openvla --variant cu130
    """
    for name in names or [DEFAULT_ENVIRONMENT]:
        print(venvs.ensure(variants.select(name, variant or "")).python)


@task("pin packages", "./lab test --quick")
def lock(
    names: list[str] = positional(help="host, contract or an environment; default: all", metavar="NAME"),
    check: bool = option(False, "change nothing; fail if a lock does not match its requirements.in"),
    licences: bool = option(False, "only write the packages' licences into THIRD_PARTY.md"),
    upgrade: bool = option(False, "pin the newest versions that fit"),
) -> None:
    """Write requirements.lock from requirements.in: exact versions with hashes.

    ./lab lock libero           after a change of images/libero/requirements.in
    ./lab lock --check          fail if a lock does not match its requirements.in
    ./lab lock --licences       after changing an image's lock: update THIRD_PARTY.md
    """
    if licences:
        from vlalab.environments import licences as licence_table  # needs packages that no other task needs

        print(f"{licence_table.FILE}: {licence_table.write()} packages")
        return
    targets = locks.choose(names)
    if not check:
        for target in targets:
            print(f"{target.name}: {'new lock' if locks.make(target, upgrade) else 'unchanged'}")
    elif problems := [problem for target in targets for problem in locks.problems(target)]:
        raise LabError("\n  ".join(["locks do not match their requirements:", *problems]))
    else:
        print(f"{len(targets)} locks match their requirements")


def _published_figures() -> dict[str, list[tuple[str, str]]]:
    figures = reproduction.figures().items()
    return {
        "Published figures": [(" ".join(key), f"{f.percent:g} %, {f.row.model}, {f.row.source}") for key, f in figures]
    }


@task(
    "repeat a published run", "./lab report latest --serve", "gpu runtime dry-run no-check", tables=_published_figures
)
def reproduce(
    policy: str = positional(help="a policy with a published figure", kind="published policy"),
    suite: str = evaluate.SUITE,
    trials: int | None = option(None, "episodes per task", kind="trials", default_help="the profile's"),
    url: str | None = option(None, "a running policy instead of the checkpoint that the lab serves", metavar="URL"),
    **run_options: Any,
) -> None:
    """Repeat a published evaluation: checkpoint, official assets, protocol, and whether the success rates agree.

    ./lab reproduce openvla libero_goal               repeat the command to continue
    ./lab reproduce openvla libero_goal --trials 10   fewer episodes, a wider interval
    ./lab reproduce openpi libero_10 --url ws://gpu01:8000
    """
    if url:
        evaluation.check_policy("--url", url)
    finish(reproduction.run(reproduction.figure(policy, suite), trials, url, **run_options))
