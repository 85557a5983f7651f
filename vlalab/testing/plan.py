"""The parts of `./lab test`: everything this machine can run, each in the environment it belongs to.

The tests of an environment run inside its image when an engine answers and the image fits its lock, else in the local
environment. Part `docker` brings an engine of its own, builds every image there and calls `in_image` for each: what it
ran that way is recorded, counted once, and not run again. Tests marked `outside` need what no image has (a browser, a
way to the package index): they always run in the local environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vlalab.description import compose, manifests
from vlalab.engine import docker, images
from vlalab.environments import pythons, venvs
from vlalab.host import gl, paths
from vlalab.host.console import LabError, say, unknown
from vlalab.host.processes import die_with_parent
from vlalab.runtimes import both, local
from vlalab.testing import inside, sidebyside
from vlalab.testing.results import (
    Result,
    parse_junit,
    read_counts,
    read_record,
    skipped,
    with_exit_code,
    write_record,
)

CONTRACT_PYTHONS = ("3.10", "3.11", "3.12", "3.13")
MOST_MINUTES = 600
RECORD = "VLALAB_TEST_RECORD"  # variable: a file that in_image adds a line of JSON to, which `run` then sums


@dataclass(frozen=True)
class How:
    """How to test. quick: leave out what takes minutes. runtime: where environments' tests run.

    nightly: run the tests marked `nightly` too.
    minutes, seed: how long part `chaos` attacks (default: its short form), and what it draws from (default: a new one).
    """

    quick: bool = False
    runtime: str = "auto"
    minutes: float | None = None
    seed: int | None = None
    nightly: bool = False

    def __post_init__(self) -> None:
        if self.minutes is not None and not 0 < self.minutes <= MOST_MINUTES:
            raise LabError(f"--minutes {self.minutes:g} makes no sense; expected more than 0, at most {MOST_MINUTES}")
        if self.runtime not in both.NAMES:
            raise LabError(unknown("runtime", self.runtime, both.NAMES))


def lint() -> Result:
    """Runs ruff over the repository; it counts as one test."""
    done = subprocess.run([sys.executable, "-m", "ruff", "check", "--no-cache", "."], cwd=paths.ROOT)
    return Result("lint", passed=int(done.returncode == 0), failed=int(done.returncode != 0))


def host() -> Result:
    """Runs the host tool's tests and those that hold the repository's files against each other."""
    return run_pytest("host", sys.executable, ["tests/host", "tests/repo"], {})


def terminal() -> Result:
    """Runs the tests that walk `./lab` in a terminal; the course's are skipped where its environment is not made."""
    for name in (manifests.default_environment(), paths.CLUSTER.name):
        venvs.ensure(name, paths.ROOT)
    gl.ensure()
    return run_pytest("terminal", sys.executable, ["tests/terminal"], {})


def contract(quick: bool = False) -> Result:
    """Runs the contract's tests in throw-away environments of the oldest and the newest Python at hand."""
    at_hand = {version: path for version in CONTRACT_PYTHONS if (path := pythons.find(version))}
    versions = list(dict.fromkeys([*list(at_hand)[-1:], *list(at_hand)[: 0 if quick else 1]]))
    total = Result("contract")
    if not versions:
        total.skipped, total.reasons["no Python 3.10 to 3.13 for the contract's tests"] = 1, 1
    for version in versions:
        say(f"contract in Python {version}")
        total = total + _contract_in(at_hand[version])
    if len(versions) == 1 and not quick:
        total.skipped += 1
        total.reasons[f"Python {versions[0]} is the only one at hand for the contract's tests"] = 1
    return total


def _contract_in(python: str) -> Result:
    lock = paths.ROOT / "tests" / "contract" / "requirements.lock"
    with tempfile.TemporaryDirectory(prefix="vlalab-contract-") as folder:
        venv = Path(folder) / "venv"
        venvs.uv(["venv", "--no-project", "--python", python, str(venv)])
        inside = venv / "bin" / "python"
        venvs.uv(["pip", "sync", "--require-hashes", "--python", str(inside), str(lock)])
        return run_pytest("contract", str(inside), ["tests/contract"], {"PYTHONPATH": paths.python_path()})


def docker_engine() -> list[Result]:
    """Runs the tests that need a Docker engine. Returns their result, and those of environments inside their images."""
    with tempfile.TemporaryDirectory(prefix="vlalab-test-") as folder:
        record = Path(folder) / "record.jsonl"
        limit = ["-o", f"faulthandler_timeout={inside.MOST_S + 300}"]  # one test waits for all of an image's own
        result = run_pytest("docker", sys.executable, ["tests/docker"], {RECORD: str(record)}, more=limit)
        return [result, *read_record(record)]


# --- the tests of an environment ----------------------------------------------------------------------------


def environment(name: str, how: How) -> Result:
    """Runs an environment's tests inside its image or, without one that fits, in the local environment.

    Those marked `outside` are left out: `outside` runs them, whatever becomes of the image.
    """
    problem = no_image(name) if how.runtime != "local" else "--runtime local"
    if problem is None:
        return in_image(name)
    if how.runtime == "docker":
        raise LabError(problem)
    say(f"{name}: in the local environment ({problem})")
    return in_local(name, "not outside")


def has_outside(name: str, how: How) -> bool:
    """Returns whether some of an environment's tests can never run inside its image, and are to run."""
    files = (paths.ROOT / "tests" / name).glob("**/test_*.py")
    return how.runtime != "docker" and any("pytest.mark.outside" in path.read_text() for path in files)


def outside(name: str) -> Result:
    """Runs what cannot run inside an environment's image in its local environment."""
    say(f"{name}: what needs more than its image has, in the local environment")
    return replace(in_local(name, "outside"), name=f"{name} outside")


def home(name: str) -> str:
    """Returns the environment that the tests of tests/<name> run in: its own, or that of the services of that name."""
    if name in ENVIRONMENTS:
        return name
    return compose.read()[next(iter(manifests.folders()[name].services))].environment_name


def no_image(name: str) -> str | None:
    """Returns why the tests of an environment cannot run inside its image, or None."""
    return docker.available() or images.unusable(home(name), images.found([home(name)]).get(home(name)))


def in_image(name: str) -> Result:
    """Runs an environment's tests inside its image, and records the result if $VLALAB_TEST_RECORD names a file."""
    if problem := no_image(name):
        raise LabError(problem)
    if not has_tests(f"tests/{name}"):
        return skipped(name, f"no tests in tests/{name}")
    image = images.found([home(name)])[home(name)]
    say(f"{name}: inside {image.reference}{'' if inside.has_this_code(image) else ', with the code of this tree'}")
    started = time.monotonic()
    code, report, cpu_seconds = inside.run(name, image, spread(name))
    result = with_exit_code(parse_junit(name, report), code)
    result.seconds, result.cpu_seconds = time.monotonic() - started, cpu_seconds
    if path := os.environ.get(RECORD):
        write_record(Path(path), [result])
    return result


def in_local(name: str, mark: str = "") -> Result:
    """Runs an environment's tests, or those of one mark, in images/<name>/.venv.

    One that is not made yet and too large here is skipped.
    """
    if not has_tests(f"tests/{name}"):
        return skipped(name, f"no tests in tests/{name}")
    env = venvs.named(home(name), paths.ROOT)
    if not ENVIRONMENTS[env.name].default and not env.is_ready() and (problem := _no_space(env)):
        return skipped(name, problem)
    venvs.ensure(env.name, paths.ROOT)
    if ENVIRONMENTS[env.name].needs_gl:
        gl.ensure()
    more = [] if mark == "outside" else spread(name)
    return run_pytest(name, str(env.python), [f"tests/{name}"], env.variables(), mark, more)


def spread(name: str) -> list[str]:
    """Returns pytest's flags for the tests that take longest: their files run side by side, most of them waiting."""
    if not ENVIRONMENTS[home(name)].tested_first:
        return []
    return ["-n", str(sidebyside.at_once_waiting()), "--dist", "loadfile", "--no-loadscope-reorder"]


def _no_space(env: venvs.Environment) -> str | None:
    need, free = env.needed_gb(), shutil.disk_usage(env.folder).free / 1e9
    if free >= need:
        return None
    return f"environment '{env.name}' takes up to {need:.1f} GB and {free:.1f} GB are free"


# --- the attack ---------------------------------------------------------------------------------------------


def chaos(how: How, *families: str) -> Result:
    """Attacks evaluations and services that it starts itself, as processes, in the environments that are made here.

    families: some of the attack's, in their share of its time; none means all.
    """
    env = venvs.ensure(manifests.default_environment(), paths.ROOT)
    gl.ensure()
    with tempfile.TemporaryDirectory(prefix="vlalab-test-") as folder:
        report = Path(folder) / "chaos.json"
        command = [str(env.python), "-m", "tests.chaos", "--report", str(report)]
        command += [word for family in families for word in ("--only", family)]
        for flag, value in (("--minutes", how.minutes), ("--seed", how.seed)):
            command += [] if value is None else [flag, f"{value:g}"]
        done = subprocess.run(
            command, cwd=paths.ROOT, env={**local.service_variables(), **env.variables()}, stdin=subprocess.DEVNULL,
            preexec_fn=die_with_parent(),
        )  # fmt: skip
        result = read_counts("chaos", report)
    return with_exit_code(result, done.returncode)


# --- all of them --------------------------------------------------------------------------------------------

ENVIRONMENTS = manifests.environments()
# Services that live in another's environment may have tests of their own.
GUESTS = [name for name in manifests.folders() if name not in ENVIRONMENTS and (paths.ROOT / "tests" / name).is_dir()]
HOMES = (*ENVIRONMENTS, *GUESTS)  # folders of tests that run in an environment
# In the order in which they are shown.
PARTS: dict[str, Callable[[How], list[Result]]] = {
    "lint": lambda how: [lint()],
    "host": lambda how: [host()],
    "contract": lambda how: [contract(how.quick)],
    "docker": lambda how: docker_engine(),
    **{name: lambda how, name=name: [environment(name, how)] for name in HOMES},
    "terminal": lambda how: [terminal()],
    "chaos": lambda how: [chaos(how)],
}


# --- pytest -------------------------------------------------------------------------------------------------


def has_tests(folder: str) -> bool:
    """Returns whether a folder of the repository holds tests."""
    return any((paths.ROOT / folder).glob("**/test_*.py"))


def run_pytest(
    name: str, python: str, folders: list[str], variables: Mapping[str, str], mark: str = "", more: Sequence[str] = ()
) -> Result:
    """Returns the counts of a pytest run of all tests there, or those of one mark; its output goes to the terminal."""
    there = [folder for folder in folders if has_tests(folder)]
    if not there:
        return skipped(name, f"no tests in {', '.join(folders)}")
    with tempfile.TemporaryDirectory(prefix="vlalab-test-") as folder:
        report = Path(folder) / "junit.xml"
        tests = ["-q", "-p", "no:cacheprovider", "-m", mark, f"--junitxml={report}", *more, *there]
        done = subprocess.run(
            [python, "-m", "pytest", *tests], cwd=paths.ROOT, env={**local.service_variables(), **variables},
            stdin=subprocess.DEVNULL, preexec_fn=die_with_parent(),
        )  # fmt: skip
        result = parse_junit(name, report.read_text() if report.exists() else "")
    return with_exit_code(result, done.returncode)
