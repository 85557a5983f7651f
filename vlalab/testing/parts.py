"""The parts of `./lab test`, each in the environment that it belongs to.

The tests of an environment run inside its image where an engine has one that fits the lock, else in the local
environment. Part `docker` builds every image and runs `./lab test ENV --runtime docker` for each: the file that
$VLALAB_TEST_RECORD names gets the counts, and it is not run again. Tests marked `outside` need what no image has (a
browser, the package index): they run in the local environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from vlalab.description import compose, manifests
from vlalab.engine import docker, images
from vlalab.environments import pythons, venvs
from vlalab.host import gl, paths
from vlalab.host.console import LabError, say, unknown
from vlalab.host.processes import die_with_parent
from vlalab.runtimes import both, local
from vlalab.testing import inside
from vlalab.testing.results import Result, append_records, read_junit, read_records, skipped

CONTRACT_PYTHONS = ("3.10", "3.11", "3.12", "3.13")
MAX_MINUTES = 600
RECORD = "VLALAB_TEST_RECORD"
ENVIRONMENTS = manifests.environments()
# Services that run in another's environment may have tests of their own.
SERVICES = [n for n in manifests.folders() if n not in ENVIRONMENTS and (paths.ROOT / "tests" / n).is_dir()]


@dataclass(frozen=True)
class Options:
    """quick: only what takes seconds. runtime: where tests of environments run. nightly: also the tests marked so.

    minutes, seed: of the fault injection.
    """

    quick: bool = False
    runtime: str = "auto"
    minutes: float | None = None
    seed: int | None = None
    nightly: bool = False

    def __post_init__(self) -> None:
        if self.minutes is not None and not 0 < self.minutes <= MAX_MINUTES:
            raise LabError(f"--minutes must be a number in (0, {MAX_MINUTES}], got {self.minutes:g}")
        if self.runtime not in both.NAMES:
            raise LabError(unknown("runtime", self.runtime, both.NAMES))


@dataclass(frozen=True)
class Part:
    """`run` gets the options and the file to print to (None: the terminal). stage: after all of an earlier stage."""

    name: str
    run: Callable[[Options, TextIO | None], list[Result]]
    stage: int = 0


def lint(options: Options, output: TextIO | None) -> list[Result]:
    """Run ruff and the type checker over the repository; each counts as one test."""
    commands = (["ruff", "check", "--no-cache", "."], ["vlalab.testing.types"])
    codes = [execute([sys.executable, "-m", *words], {}, output) for words in commands]
    return [Result("lint", passed=codes.count(0), failed=len(codes) - codes.count(0))]


def contract(options: Options, output: TextIO | None) -> list[Result]:
    """Run the contract's tests in temporary environments of the oldest and the newest Python that are installed."""
    available = {version: path for version in CONTRACT_PYTHONS if (path := pythons.find(version))}
    results = []
    for version in dict.fromkeys([*list(available)[-1:], *([] if options.quick else list(available)[:1])]):
        with tempfile.TemporaryDirectory(prefix="vlalab-contract-") as directory:
            python = Path(directory) / "venv" / "bin" / "python"
            venvs.uv(["venv", "--no-project", "--python", available[version], str(python.parents[1])])
            lock = paths.ROOT / "tests" / "contract" / "requirements.lock"
            venvs.uv(["pip", "sync", "--require-hashes", "--python", str(python), str(lock)])
            variables = {"PYTHONPATH": paths.python_path()}
            results.append(run_pytest(f"contract {version}", str(python), ["tests/contract"], variables, output))
    if len(results) < 2 and not options.quick:
        results.append(skipped("contract", "two Pythons from 3.10 to 3.13 are needed for the contract's tests"))
    return results


def docker_engine(options: Options, output: TextIO | None) -> list[Result]:
    """Run the tests that need a Docker engine. Return their result, and those of the tests inside images."""
    with tempfile.TemporaryDirectory(prefix="vlalab-test-") as directory:
        record = Path(directory) / "record.jsonl"
        timeout = f"faulthandler_timeout={inside.MAX_S + 300}"  # one test waits for all tests of an image
        variables = {RECORD: str(record)}
        result = run_pytest("docker", sys.executable, ["tests/docker"], variables, output, ["-o", timeout])
        return [result, *read_records(record)]


def terminal(options: Options, output: TextIO | None) -> list[Result]:
    """Run the tests that use `./lab` in a terminal."""
    make_environments(manifests.default_environment(), paths.CLUSTER.name)
    gl.ensure()
    return [run_pytest("terminal", sys.executable, ["tests/terminal"], {}, output)]


def image_problem(name: str) -> str | None:
    """Return why the tests of an environment cannot run inside its image, or None."""
    return docker.available() or images.unusable(name, images.found([name]).get(name))


def environment(name: str, options: Options, output: TextIO | None) -> list[Result]:
    """Run the tests of an environment, but those marked `outside`, inside its image or in the local environment."""
    if not has_tests(f"tests/{name}"):
        return [skipped(name, f"no tests in tests/{name}")]
    home = host_environment(name)
    problem = "--runtime local" if options.runtime == "local" else image_problem(home)
    if problem is None:
        result = inside.run(name, images.found([home])[home], xdist_flags(name), output)
        if path := os.environ.get(RECORD):
            append_records(Path(path), [result])
        return [result]
    if options.runtime == "docker":
        raise LabError(problem)
    say(f"{name}: in the local environment ({problem})")
    return [in_local(name, output, ["-m", "not outside", *xdist_flags(name)])]


def has_outside(name: str) -> bool:
    """Return whether some tests of an environment are marked `outside`."""
    return any("pytest.mark.outside" in p.read_text() for p in (paths.ROOT / "tests" / name).glob("**/test_*.py"))


def outside(name: str, options: Options, output: TextIO | None) -> list[Result]:
    """Run the tests of an environment that are marked `outside` in the local environment."""
    make_environments()  # such tests start services of other environments
    result = in_local(name, output, ["-m", "outside"])
    result.name = f"{name} outside"
    return [result]


def make_environments(*names: str) -> None:
    """Make local environments: these, and those with tests marked `outside`."""
    with_outside = [host_environment(name) for name in [*ENVIRONMENTS, *SERVICES] if has_outside(name)]
    for name in dict.fromkeys([*names, *with_outside]):
        venvs.ensure(name, paths.ROOT)


def in_local(name: str, output: TextIO | None, flags: Sequence[str]) -> Result:
    """Run tests of an environment in images/<name>/.venv, which is made first where it is missing."""
    env = venvs.ensure(host_environment(name), paths.ROOT)
    if ENVIRONMENTS[env.name].needs_gl:
        gl.ensure()
    return run_pytest(name, str(env.python), [f"tests/{name}"], env.variables(), output, flags)


def host_environment(name: str) -> str:
    """Return the environment of tests/<name>: of that name, or that of the services of that name."""
    if name in ENVIRONMENTS:
        return name
    return compose.read()[next(iter(manifests.folders()[name].services))].environment_name


def xdist_flags(name: str) -> list[str]:
    """Return the flags that run test files in parallel, for the environment whose tests take longest."""
    is_long = ENVIRONMENTS[host_environment(name)].tested_first
    return ["-n", str(at_once()), "--dist", "loadfile", "--no-loadscope-reorder"] if is_long else []


def chaos(options: Options, output: TextIO | None, *families: str) -> list[Result]:
    """Inject faults into evaluations and services that it starts. families: some of them; none means all."""
    env = venvs.ensure(manifests.default_environment(), paths.ROOT)
    gl.ensure()
    with tempfile.TemporaryDirectory(prefix="vlalab-test-") as directory:
        report = Path(directory) / "chaos.json"
        command = [str(env.python), "-m", "tests.chaos", "--report", str(report)]
        command += [word for family in families for word in ("--only", family)]
        for flag, value in (("--minutes", options.minutes), ("--seed", options.seed)):
            command += [] if value is None else [flag, f"{value:g}"]
        code = execute(command, env.variables(), output)
        counts = json.loads(report.read_text()) if report.exists() and code in (0, 1) else {"failed": 1}
    return [Result("chaos", **counts)]


def has_tests(directory: str) -> bool:
    """Return whether a directory of the repository has tests."""
    return any((paths.ROOT / directory).glob("**/test_*.py"))


def run_pytest(
    name: str, python: str, directories: Sequence[str], variables: Mapping[str, str], output: TextIO | None = None,
    flags: Sequence[str] = (),
) -> Result:  # fmt: skip
    """Return the counts of a pytest run."""
    with tempfile.TemporaryDirectory(prefix="vlalab-test-") as directory:
        report = Path(directory) / "junit.xml"
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *flags]
        code = execute([*command, *directories], variables, output)
        return read_junit(name, report, code)


def execute(command: Sequence[str], variables: Mapping[str, str], output: TextIO | None) -> int:
    """Run a command in the repository's root and return its exit code."""
    process = subprocess.Popen(
        command, cwd=paths.ROOT, env={**local.service_variables(), **variables}, stdin=subprocess.DEVNULL,
        stdout=output, stderr=output, preexec_fn=die_with_parent(),
    )  # fmt: skip
    inside.running.append(process)
    return process.wait()


def at_once() -> int:
    """Return how many parts run at once: one per core and 5 GB of free memory, and one more as most parts wait."""
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    limit = min(len(os.sched_getaffinity(0)), int(meminfo["MemAvailable"].split()[0]) // 5_000_000)
    return max(1, limit + (limit > 1))


def all_parts(options: Options) -> list[Part]:
    """Return every part, in the order in which they start."""
    names = [*ENVIRONMENTS, *SERVICES]

    def of(function: Callable[..., list[Result]], *words: str) -> Callable[[Options, TextIO | None], list[Result]]:
        return lambda options, output: function(*words, options, output)

    return [
        Part("lint", lint),
        Part("docker", docker_engine),
        Part("contract", contract),
        Part("host", lambda options, output: [
            run_pytest("host", sys.executable, ["tests/host", "tests/repo"], {}, output)
        ]),
        *(Part(f"{n} outside", of(outside, n)) for n in names if options.runtime != "docker" and has_outside(n)),
        Part("terminal", terminal),
        *(Part(n, of(environment, n), stage=1) for n in names),
        *([] if options.minutes else [Part("chaos faults", lambda o, out: chaos(o, out, "faults", "planted"))]),
        Part("chaos", lambda o, out: chaos(o, out, *([] if o.minutes else ["pages", "policies"])), stage=2),
    ]  # fmt: skip
