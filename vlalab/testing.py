"""`./lab test`: everything this machine can run, each part in the environment it belongs to, and one sum at the end.

The tests of an environment run inside its image when an engine answers and the image fits its lock, else in the local
environment. Part `docker` brings an engine of its own, builds every image there and calls `in_image` for each: what it
ran that way is recorded, counted once, and not run again. Tests marked `outside` need what no image has (a browser, a
way to the package index): they always run in the local environment.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vlalab import docker, environments, gl, images, inside, local, paths, pythons, runtimes
from vlalab.console import LabError, say, unknown
from vlalab.processes import die_with_parent

CONTRACT_PYTHONS = ("3.10", "3.11", "3.12", "3.13")
MOST_MINUTES = 600
RECORD = "VLALAB_TEST_RECORD"  # variable: a file that in_image adds a line of JSON to, which `run` then sums


@dataclass(frozen=True)
class How:
    """How to test. quick: leave out what takes minutes. runtime: where environments' tests run.

    minutes, seed: how long part `chaos` attacks (default: its short form), and what it draws from (default: a new one).
    """

    quick: bool = False
    runtime: str = "auto"
    minutes: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.minutes is not None and not 0 < self.minutes <= MOST_MINUTES:
            raise LabError(f"--minutes {self.minutes:g} makes no sense; expected more than 0, at most {MOST_MINUTES}")
        if self.runtime not in runtimes.NAMES:
            raise LabError(unknown("runtime", self.runtime, runtimes.NAMES))


@dataclass
class Result:
    """What came of one part. `reasons` say why something was skipped, with how often."""

    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Result) -> Result:
        return Result(
            self.name,
            self.passed + other.passed,
            self.failed + other.failed,
            self.skipped + other.skipped,
            self.seconds + other.seconds,
            self.reasons + other.reasons,
        )


def lint() -> Result:
    """Runs ruff over the repository; it counts as one test."""
    done = subprocess.run([sys.executable, "-m", "ruff", "check", "--no-cache", "."], cwd=paths.ROOT)
    return Result("lint", passed=int(done.returncode == 0), failed=int(done.returncode != 0))


def host() -> Result:
    """Runs the host tool's tests and those that hold the repository's files against each other."""
    return run_pytest("host", sys.executable, ["tests/host", "tests/repo"], {})


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
        environments.uv(["venv", "--no-project", "--python", python, str(venv)])
        inside = venv / "bin" / "python"
        environments.uv(["pip", "sync", "--require-hashes", "--python", str(inside), str(lock)])
        return run_pytest("contract", str(inside), ["tests/contract"], {"PYTHONPATH": paths.python_path()})


def docker_engine() -> list[Result]:
    """Runs the tests that need a Docker engine. Returns their result, and those of environments inside their images."""
    with tempfile.TemporaryDirectory(prefix="vlalab-test-") as folder:
        record = Path(folder) / "record.jsonl"
        result = run_pytest("docker", sys.executable, ["tests/docker"], {RECORD: str(record)})
        return [result, *read_record(record)]


# --- the tests of an environment ----------------------------------------------------------------------------


def environment(name: str, how: How) -> list[Result]:
    """Runs an environment's tests inside its image or, without one that fits, in the local environment."""
    problem = no_image(name) if how.runtime != "local" else "--runtime local"
    if problem is None:
        return [in_image(name), *outside(name, how)]
    if how.runtime == "docker":
        raise LabError(problem)
    say(f"{name}: in the local environment ({problem})")
    return [in_local(name)]


def outside(name: str, how: How) -> list[Result]:
    """Runs what cannot run inside an environment's image in its local environment; nothing where there is none.

    With runtime "docker" it is left out.
    """
    files = (paths.ROOT / "tests" / name).glob("**/test_*.py")
    if how.runtime == "docker" or not any("pytest.mark.outside" in path.read_text() for path in files):
        return []
    say(f"{name}: what needs more than its image has, in the local environment")
    started = time.monotonic()
    result = in_local(name, "outside")
    result.seconds = time.monotonic() - started
    return [result]


def no_image(name: str) -> str | None:
    """Returns why the tests of an environment cannot run inside its image, or None."""
    return docker.available() or images.unusable(name, images.found([name]).get(name))


def in_image(name: str) -> Result:
    """Runs an environment's tests inside its image, and records the result if $VLALAB_TEST_RECORD names a file."""
    if problem := no_image(name):
        raise LabError(problem)
    if not has_tests(f"tests/{name}"):
        return _skipped(name, f"no tests in tests/{name}")
    image = images.found([name])[name]
    say(f"{name}: inside {image.reference}{'' if inside.has_this_code(image) else ', with the code of this tree'}")
    started = time.monotonic()
    code, report = inside.run(name, image)
    result = _with_exit_code(parse_junit(name, report), code)
    result.seconds = time.monotonic() - started
    if path := os.environ.get(RECORD):
        with open(path, "a") as file:
            file.write(json.dumps(vars(result)) + "\n")
    return result


def in_local(name: str, mark: str = "") -> Result:
    """Runs an environment's tests, or those of one mark, in images/<name>/.venv.

    One that is not made yet and too large here is skipped.
    """
    if not has_tests(f"tests/{name}"):
        return _skipped(name, f"no tests in tests/{name}")
    env = environments.named(name, paths.ROOT)
    if name != "libero" and not env.is_ready() and (problem := _no_space(env)):
        return _skipped(name, problem)
    environments.ensure(name, paths.ROOT)
    if name == "libero":
        gl.ensure()
    return run_pytest(name, str(env.python), [f"tests/{name}"], env.variables(), mark)


def _no_space(env: environments.Environment) -> str | None:
    need, free = environments.SIZE_GB.get(env.name, 1.0) * 2, shutil.disk_usage(env.folder).free / 1e9
    if free >= need:
        return None
    return f"environment '{env.name}' takes up to {need:.1f} GB and {free:.1f} GB are free"


def _skipped(name: str, reason: str) -> Result:
    return Result(name, skipped=1, reasons=Counter([reason]))


# --- the attack ---------------------------------------------------------------------------------------------


def chaos(how: How) -> Result:
    """Attacks evaluations and services that it starts itself, as processes, in the environments that are made here."""
    env = environments.ensure("libero", paths.ROOT)
    gl.ensure()
    with tempfile.TemporaryDirectory(prefix="vlalab-test-") as folder:
        report = Path(folder) / "chaos.json"
        command = [str(env.python), "-m", "tests.chaos", "--report", str(report)]
        for flag, value in (("--minutes", how.minutes), ("--seed", how.seed)):
            command += [] if value is None else [flag, f"{value:g}"]
        done = subprocess.run(
            command, cwd=paths.ROOT, env={**local.service_variables(), **env.variables()}, stdin=subprocess.DEVNULL,
            preexec_fn=die_with_parent(),
        )  # fmt: skip
        result = read_counts("chaos", report)
    return _with_exit_code(result, done.returncode)


def read_counts(name: str, path: Path) -> Result:
    """Returns the counts that tests/chaos wrote; a file that is missing or damaged counts as one failure."""
    try:
        counts = json.loads(path.read_text())
        return Result(name, **{**counts, "reasons": Counter(counts["reasons"])})
    except (OSError, ValueError, KeyError, TypeError):
        return Result(name, failed=1)


# --- all of them --------------------------------------------------------------------------------------------

ENVIRONMENTS = ("libero", "openvla", "gr00t", "ws_mdl", "ui")
# In the order in which they run: what brings an engine comes before the environments that it covers.
PARTS: dict[str, Callable[[How], list[Result]]] = {
    "lint": lambda how: [lint()],
    "host": lambda how: [host()],
    "contract": lambda how: [contract(how.quick)],
    "docker": lambda how: docker_engine(),
    **{name: lambda how, name=name: environment(name, how) for name in ENVIRONMENTS},
    "chaos": lambda how: [chaos(how)],  # last: it attacks the services of the environments that are made by then
}
QUICK = ("lint", "host", "contract")


def run(names: list[str], how: How) -> int:
    """Runs the parts of those names (none or "all": every one) and prints the sum. Returns the exit code."""
    results: list[Result] = []
    for name in choose(names, how.quick):
        ran = name in [result.name for result in results]  # by part `docker`, inside its image
        results += _run_part(name, how, ran)
    if how.quick and not names:
        results.append(_skipped("others", f"--quick runs {', '.join(QUICK)} only"))
    return _print_sum(results)


def choose(names: list[str], quick: bool = False) -> list[str]:
    """Returns the parts of those words in the order in which they run; none and "all" mean every one."""
    for name in names:
        if name not in [*PARTS, "all"]:
            raise LabError(unknown("part", name, ["all", *PARTS]))
    wanted = names if names and "all" not in names else QUICK if quick else tuple(PARTS)
    return [name for name in PARTS if name in wanted]


def _run_part(name: str, how: How, ran: bool) -> list[Result]:
    say(f"part '{name}'")
    started = time.monotonic()
    try:
        results = outside(name, how) if ran else PARTS[name](how)
    except LabError as error:
        say(f"part '{name}' failed: {error}")
        results = [Result(name, failed=1)]
    if results and not results[0].seconds:
        results[0].seconds = time.monotonic() - started
    return results


def read_record(path: Path) -> list[Result]:
    """Returns the results that in_image recorded in a file; none when there is no file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [Result(**{**record, "reasons": Counter(record["reasons"])}) for record in map(json.loads, lines)]


# --- pytest -------------------------------------------------------------------------------------------------


def has_tests(folder: str) -> bool:
    """Returns whether a folder of the repository holds tests."""
    return any((paths.ROOT / folder).glob("**/test_*.py"))


def run_pytest(name: str, python: str, folders: list[str], variables: Mapping[str, str], mark: str = "") -> Result:
    """Returns the counts of a pytest run of all tests there, or those of one mark; its output goes to the terminal."""
    there = [folder for folder in folders if has_tests(folder)]
    if not there:
        return _skipped(name, f"no tests in {', '.join(folders)}")
    with tempfile.TemporaryDirectory(prefix="vlalab-test-") as folder:
        report = Path(folder) / "junit.xml"
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", mark, f"--junitxml={report}", *there]
        done = subprocess.run(
            command, cwd=paths.ROOT, env={**local.service_variables(), **variables}, stdin=subprocess.DEVNULL,
            preexec_fn=die_with_parent(),
        )  # fmt: skip
        result = parse_junit(name, report.read_text() if report.exists() else "")
    return _with_exit_code(result, done.returncode)


def _with_exit_code(result: Result, code: int) -> Result:
    """Returns the counts, with one failure where pytest ended otherwise than a report of its own can say."""
    if code not in (0, 1) and result.failed == 0:
        say(f"pytest ended with code {code}")
        result.failed = 1
    return result


def parse_junit(name: str, report: str) -> Result:
    """Returns the counts in a pytest report (XML); a missing or broken report counts as one failure."""
    try:
        root = ElementTree.fromstring(report)
    except ElementTree.ParseError:
        return Result(name, failed=1)
    result = Result(name)
    for case in root.iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            result.failed += 1
        elif "skipped" in kinds:
            result.skipped += 1
            result.reasons[case.find("skipped").get("message", "")] += 1  # type: ignore[union-attr]
        else:
            result.passed += 1
    return result


def _print_sum(results: list[Result]) -> int:
    total = sum(results, Result("all"))
    print(f"\n{'part':<10}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}")
    for result in results:
        print(f"{result.name:<10}{result.passed:>8}{result.failed:>8}{result.skipped:>9}{result.seconds:>9.0f}")
    for reason, count in total.reasons.items():
        print(f"skipped {count}: {reason}")
    print(f"\n{total.passed} passed, {total.failed} failed, {total.skipped} skipped", flush=True)
    return 1 if total.failed or total.passed == 0 else 0
