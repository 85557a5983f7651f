"""`./lab test`: everything this machine can run, each part in the environment it belongs to, and one sum at the end."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vlalab import environments, gl, local, paths, pythons
from vlalab.console import LabError, say, unknown
from vlalab.processes import die_with_parent

CONTRACT_PYTHONS = ("3.10", "3.11", "3.12", "3.13")


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


def libero() -> Result:
    """Runs the simulator's, the evaluator's and the policies' tests inside the libero environment."""
    env = environments.ensure("libero")
    gl.ensure()
    return run_pytest("libero", str(env.python), ["tests/libero"], local.service_variables(env))


PARTS: dict[str, Callable[[], Result]] = {"lint": lint, "host": host, "contract": contract, "libero": libero}


def run(names: list[str], quick: bool = False) -> int:
    """Runs the parts of those names (all without names) and prints the sum. Returns the exit code.

    quick: no simulator, and the contract in one Python only.
    """
    for name in names:
        if name not in PARTS:
            raise LabError(unknown("part", name, PARTS))
    chosen = names or [name for name in PARTS if not (quick and name == "libero")]
    results = [_run_part(name, quick) for name in chosen]
    if quick and not names:
        left_out = Result("libero", skipped=1)
        left_out.reasons["--quick leaves the simulator's tests out"] = 1
        results.append(left_out)
    return _print_sum(results)


def _run_part(name: str, quick: bool) -> Result:
    say(f"part '{name}': {(PARTS[name].__doc__ or '').splitlines()[0]}")
    started = time.monotonic()
    try:
        result = contract(quick) if name == "contract" else PARTS[name]()
    except LabError as error:
        say(f"part '{name}' failed: {error}")
        result = Result(name, failed=1)
    result.seconds = time.monotonic() - started
    return result


def run_pytest(name: str, python: str, folders: list[str], variables: Mapping[str, str]) -> Result:
    """Returns the counts of a pytest run; its output goes to the terminal."""
    there = [folder for folder in folders if list((paths.ROOT / folder).glob("**/test_*.py"))]
    if not there:
        return Result(name, skipped=1, reasons=Counter([f"no tests in {', '.join(folders)}"]))
    with tempfile.TemporaryDirectory(prefix="vlalab-test-") as folder:
        report = Path(folder) / "junit.xml"
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *there]
        done = subprocess.run(
            command, cwd=paths.ROOT, env={**local.service_variables(), **variables}, stdin=subprocess.DEVNULL,
            preexec_fn=die_with_parent(),
        )  # fmt: skip
        result = read_junit(name, report)
    if done.returncode not in (0, 1) and result.failed == 0:
        say(f"pytest ended with code {done.returncode}")
        result.failed = 1
    return result


def read_junit(name: str, report: Path) -> Result:
    """Returns the counts in a pytest report; a missing or broken report counts as one failure."""
    try:
        root = ElementTree.parse(report).getroot()
    except (OSError, ElementTree.ParseError):
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
