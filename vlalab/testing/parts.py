"""The parts of `./lab test`, and the environment of each.

An environment's tests run inside its image if the engine has one of the current lock, else in the local environment.
Part `docker` builds every image and runs `./lab test ENV --runtime docker` for each. It writes the counts to the file
$VLALAB_TEST_RECORD, and these parts are not repeated.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from vlalab.commands import course
from vlalab.description import compose, gpus, manifests
from vlalab.engine import building, docker, images, volumes
from vlalab.environments import pythons, venvs
from vlalab.host import gl, paths
from vlalab.host.console import LabError, log_info
from vlalab.host.processes import die_with_parent
from vlalab.runtimes import local

MAX_MINUTES = 600
MAX_IMAGE_S = 3600  # of tests inside an image; the slowest took 46 min next to all others on two busy cores
ROOM = 70e9  # bytes: images while they are built, and the local environments of all parts
NIGHTLY_IMAGES = ("lerobot",)  # it shares no layer with others: part docker builds it with --nightly only
RECORD, NIGHTLY = "VLALAB_TEST_RECORD", "VLALAB_TEST_NIGHTLY"
HOME = "/opt/vla-lab"  # where an image stores the code
ENVIRONMENTS = manifests.environments()
# Services that run in another's environment may have tests of their own.
SERVICES = [n for n in manifests.directories() if n not in ENVIRONMENTS and (paths.ROOT / "tests" / n).is_dir()]
running: list[subprocess.Popen[bytes]] = []  # processes of tests; Ctrl-C ends them


@dataclass(frozen=True)
class SuiteOptions:
    """quick: only what takes seconds. runtime: where tests of environments run. nightly: also the tests marked so.

    minutes, seed: of the fault injection.
    """

    quick: bool = False
    runtime: str = "auto"
    minutes: float | None = None
    seed: int | None = None
    nightly: bool = False


@dataclass
class PartResult:
    """The counts of one part. `reasons` counts the skipped tests by reason."""

    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class SuitePart:
    """`run` gets the options and the file to print to (None: the terminal). stage: after all of an earlier stage."""

    name: str
    run: Callable[[SuiteOptions, TextIO | None], list[PartResult]]
    stage: int = 0


def all_parts(options: SuiteOptions) -> list[SuitePart]:
    """Return every part, in the order in which they start. Fault injection that measures response times runs alone.

    What part `docker` may test waits for it. Other parts do so only where the disk cannot hold all at one time.
    """
    names = [*ENVIRONMENTS, *SERVICES]
    has_room = shutil.disk_usage(paths.ROOT).free >= ROOM
    untested = {*SERVICES, *(() if options.nightly else NIGHTLY_IMAGES), *paths.variant_names()} if has_room else ()
    outside = [name for name in names if options.runtime != "docker" and has_outside(name)]
    faults = [] if options.minutes else [SuitePart("chaos faults", partial(chaos, ["faults", "planted"]))]
    return [
        SuitePart("lint", lint),
        SuitePart("docker", docker_engine),
        SuitePart("contract", contract),
        SuitePart("host", lambda _, output: [run_pytest("host", sys.executable, ["tests/host", "tests/repo"], output)]),
        *(SuitePart(f"{name} outside", partial(environment, name, "outside")) for name in outside),
        SuitePart("terminal", terminal),
        SuitePart("classroom", classroom),
        *(SuitePart(name, partial(environment, name, "not outside"), int(name not in untested)) for name in names),
        *(SuitePart(name, partial(variant, name), int(name not in untested)) for name in paths.variant_names()),
        *faults,
        SuitePart("chaos", partial(chaos, [] if options.minutes else ["pages", "policies"]), stage=2),
    ]


def lint(options: SuiteOptions, output: TextIO | None) -> list[PartResult]:
    """Run ruff and the type checker over the repository; each counts as one test."""
    commands = (["ruff", "check", "--no-cache", "."], ["vlalab.testing.types"])
    codes = [execute([sys.executable, "-m", *arguments], {}, output) for arguments in commands]
    return [PartResult("lint", passed=codes.count(0), failed=len(codes) - codes.count(0))]


def contract(options: SuiteOptions, output: TextIO | None) -> list[PartResult]:
    """Run the contract's tests in temporary environments of the oldest and the newest Python that are installed."""
    available = {version: path for version in sorted(venvs.INSTALLATION) if (path := pythons.find(version))}
    results = []
    for version in dict.fromkeys([*list(available)[-1:], *([] if options.quick else list(available)[:1])]):
        with tempfile.TemporaryDirectory(prefix="vlalab-contract-") as directory:
            python, lock = Path(directory, "venv/bin/python"), paths.ROOT / "tests/contract/requirements.lock"
            venvs.uv(["venv", "--no-project", "--python", available[version], str(python.parents[1])])
            venvs.uv(["pip", "sync", "--require-hashes", "--python", str(python), str(lock)])
            variables = {"PYTHONPATH": paths.python_path()}
            results.append(run_pytest(f"contract {version}", str(python), ["tests/contract"], output, variables))
    if len(results) < 2 and not options.quick:
        results.append(skipped("contract", "two Pythons from 3.10 to 3.13 are needed for the contract's tests"))
    return results


def docker_engine(options: SuiteOptions, output: TextIO | None) -> list[PartResult]:
    """Run the tests that need a Docker engine. Return their result, and those of the tests inside images."""
    with tempfile.TemporaryDirectory(prefix="vlalab-test-") as directory:
        record = Path(directory, "record.jsonl")
        record.touch()
        timeout = f"faulthandler_timeout={MAX_IMAGE_S + 300}"  # one test waits for all tests of an image
        variables = {RECORD: str(record)}
        result = run_pytest("docker", sys.executable, ["tests/docker"], output, variables, ["-o", timeout])
        return [result, *(PartResult(**json.loads(line)) for line in record.read_text().splitlines())]


def terminal(options: SuiteOptions, output: TextIO | None) -> list[PartResult]:
    """Run the tests that use `./lab` in a terminal."""
    make_environments(manifests.default_environment(), paths.CLUSTER.name)
    gl.ensure()
    return [run_pytest("terminal", sys.executable, ["tests/terminal"], output)]


def classroom(options: SuiteOptions, output: TextIO | None) -> list[PartResult]:
    """Run the tests of a class: a real hub and a browser. They need root."""
    make_environments(paths.HUB.name, compose.read()[course.service()].environment_name)
    return [run_pytest("classroom", sys.executable, ["tests/classroom"], output)]


def environment(name: str, markers: str, options: SuiteOptions, output: TextIO | None) -> list[PartResult]:
    """Run tests/<name>, inside an image or in the local environment.

    Tests marked `outside` need what no image has (a browser, the package index, services of other environments).
    """
    if not any((paths.ROOT / "tests" / name).glob("**/test_*.py")):
        return [skipped(name, f"no tests in tests/{name}")]
    home, flags, label = host_environment(name), ["-m", markers], name
    if markers == "outside":
        make_environments()
        label = f"{name} outside"
    else:
        if ENVIRONMENTS[home].tested_first:  # its tests take longest: files run in parallel
            flags += ["-n", str(max_parallel_parts()), "--dist", "loadfile", "--no-loadscope-reorder"]
        problem = "--runtime local" if options.runtime == "local" else docker.available()
        image = None if problem else images.existing([home]).get(home)
        problem = problem or images.unusable(home, image)
        if image and not problem:
            return [run_in_image(name, image, flags, output, test_paths(name))]
        if options.runtime == "docker":
            raise LabError(problem or "")
        log_info(f"{name}: in the local environment ({problem})")
    env = venvs.ensure(home, paths.ROOT)
    if ENVIRONMENTS[home].needs_gl:
        gl.ensure()
    return [run_pytest(label, str(env.python), test_paths(name), output, env.variables(), flags)]


def variant(name: str, options: SuiteOptions, output: TextIO | None) -> list[PartResult]:
    """Run the tests that a variant's manifest names, or with --nightly all of its environment's.

    They run in its image with runtime "docker", else in its own .venv.
    """
    flags = ["-m", "not outside"]
    tests = [f"tests/{name.partition('-')[0]}"] if options.nightly else manifests.environment(name).tests
    if options.runtime == "docker":
        image = images.existing([name]).get(name)
        if image is None or not image.fits():
            raise LabError(images.unusable(name, image) or "")
        return [run_in_image(name, image, flags, output, tests)]
    env = venvs.ensure(name, paths.ROOT)
    return [run_pytest(name, str(env.python), tests, output, env.variables(), flags)]


def chaos(families: Sequence[str], options: SuiteOptions, output: TextIO | None) -> list[PartResult]:
    """Inject faults into evaluations and services that it starts. families: some of them; none means all."""
    env = venvs.ensure(manifests.default_environment(), paths.ROOT)
    gl.ensure()
    with tempfile.TemporaryDirectory(prefix="vlalab-test-") as directory:
        report = Path(directory, "chaos.json")
        command = [str(env.python), "-m", "tests.chaos", "--report", str(report)]
        command += [word for family in families for word in ("--only", family)]
        for flag, value in (("--minutes", options.minutes), ("--seed", options.seed)):
            command += [] if value is None else [flag, f"{value:g}"]
        code = execute(command, env.variables(), output)
        counts: dict[str, Any] = json.loads(report.read_text()) if report.exists() and code in (0, 1) else {"failed": 1}
    return [PartResult("chaos", **counts)]


def skipped(name: str, reason: str) -> PartResult:
    """Return the result of a part that was skipped."""
    return PartResult(name, skipped=1, reasons=Counter([reason]))


def test_paths(name: str) -> list[str]:
    """Return the paths of a part's tests: its directory, and the shared packages' tests that run in it too."""
    return [f"tests/{name}", *(ENVIRONMENTS[name].tests if name in ENVIRONMENTS else ())]


def has_outside(name: str) -> bool:
    """Return whether an environment has tests marked `outside`."""
    marks = re.compile(r"pytest\.mark\.outside|axe\.NEEDED|axe\.in_a_browser")  # the last two are in tests/axe.py
    return any(marks.search(path.read_text()) for path in (paths.ROOT / "tests" / name).glob("**/test_*.py"))


def host_environment(name: str) -> str:
    """Return the environment of tests/<name>: of that name, or that of the services of that name."""
    if name in ENVIRONMENTS:
        return name
    return compose.read()[next(iter(manifests.directories()[name].services))].environment_name


def make_environments(*names: str) -> None:
    """Install local environments: these, and those with tests marked `outside`."""
    with_outside = [host_environment(name) for name in [*ENVIRONMENTS, *SERVICES] if has_outside(name)]
    for name in dict.fromkeys([*names, *with_outside]):
        venvs.ensure(name, paths.ROOT)


# --- running ------------------------------------------------------------------------------------------------


def image_command(
    name: str, image: images.Image, report: Path, flags: Sequence[str] = (), tests: Sequence[str] = ()
) -> list[str]:
    """Return docker's arguments that run tests inside the image of `name`; pytest's report goes into `report`."""
    gpu = gpus.selection(name.partition("-")[0], compose.environment_variables())
    mounted = ["pyproject.toml", "tests", "bench"]  # tests compare what benchmarks count
    if image.revision != building.commit() or image.revision.endswith(("-dirty", "unknown")):
        mounted += ["services", "lessons", *paths.SHARED]
    pairs = [(paths.ROOT / path, f"{HOME}/{path}") for path in mounted]
    volume = [paths.volume() / part for part in ("assets", "checkpoints")]  # what tests may read
    pairs += [(path, f"/volume/{path.name}") for path in volume if path.is_dir()]
    return [
        "run", "--rm", "--init", "--name", f"vla-lab-test-{name}-{os.getpid()}",
        "--user", ":".join(map(str, volumes.container_user())), "--read-only", "--network", "none", "--cap-drop", "ALL",
        "--security-opt", "no-new-privileges", "--shm-size", "1g",
        "--tmpfs", "/tmp:rw,exec,mode=1777", "--tmpfs", "/volume:rw,mode=1777",
        "--env", "PYTHONDONTWRITEBYTECODE=1", "--env", "PYTHONUNBUFFERED=1",
        "--env", "PYTHONPATH=" + ":".join((HOME, *(f"{HOME}/{part}" for part in paths.SHARED))),  # as the images
        "--env", "NVIDIA_VISIBLE_DEVICES=void",  # no GPU unless VLALAB_<ENV>_GPU names one: others may be computing
        *([] if gpu in ("", "none") else ["--gpus", "all" if gpu == "all" else f'"device={gpu}"']),
        "--env", "OMP_NUM_THREADS", "--env", NIGHTLY,
        "--volume", f"{report}:/report",
        *(word for source, target in pairs for word in ("--volume", f"{source}:{target}:ro")),
        image.reference, "python", "-m", "pytest", "-q", "-p", "no:cacheprovider",
        "--junitxml=/report/junit.xml", *flags, *tests,
    ]  # fmt: skip


def run_in_image(
    name: str, image: images.Image, flags: Sequence[str], output: TextIO | None, tests: Sequence[str]
) -> PartResult:
    """Return the counts of tests inside the image of an environment or a variant."""
    with tempfile.TemporaryDirectory(prefix="vlalab-test-") as directory:
        os.chmod(directory, 0o777)  # the user inside may be another one
        arguments = image_command(name, image, Path(directory), flags, tests)
        process = docker.open_pipe(arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        running.append(process)
        try:
            result = read_junit(name, Path(directory, "junit.xml"), process.wait(MAX_IMAGE_S))
        except BaseException as error:
            docker.run(["rm", "--force", arguments[arguments.index("--name") + 1]], check=False)
            if isinstance(error, subprocess.TimeoutExpired):
                raise LabError(f"the tests of {name} took more than {MAX_IMAGE_S // 60} min in their image") from None
            raise
    if path := os.environ.get(RECORD):
        with open(path, "a") as file:
            file.write(json.dumps(vars(result)) + "\n")
    return result


def run_pytest(
    name: str, python: str, tests: Sequence[str], output: TextIO | None = None,
    variables: Mapping[str, str] | None = None, flags: Sequence[str] = (),
) -> PartResult:  # fmt: skip
    """Return the counts of a pytest run."""
    with tempfile.TemporaryDirectory(prefix="vlalab-test-") as directory:
        report = Path(directory, "junit.xml")
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *flags, *tests]
        return read_junit(name, report, execute(command, variables or {}, output))


def read_junit(name: str, path: Path, exit_code: int) -> PartResult:
    """Return the counts of a pytest report. A missing or damaged one, or an unusual exit code, is a failure."""
    from xml.etree import ElementTree  # no other task needs it

    try:
        tests = list(ElementTree.parse(path).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        tests, exit_code = [], exit_code or 3
    skips = [element.get("message", "") for test in tests if (element := test.find("skipped")) is not None]
    failed = sum(test.find("failure") is not None or test.find("error") is not None for test in tests)
    if exit_code not in (0, 1) and not failed:
        print(f"{name}: pytest ended with code {exit_code}")
        return PartResult(name, len(tests) - len(skips), 1, len(skips), 0.0, Counter(skips))
    return PartResult(name, len(tests) - len(skips) - failed, failed, len(skips), 0.0, Counter(skips))


def execute(command: Sequence[str], variables: Mapping[str, str], output: TextIO | None) -> int:
    """Run a command in the repository's root and return its exit code."""
    process = subprocess.Popen(
        command, cwd=paths.ROOT, env={**local.service_variables(), **variables}, stdin=subprocess.DEVNULL,
        stdout=output, stderr=output, preexec_fn=die_with_parent(),
    )  # fmt: skip
    running.append(process)
    return process.wait()


def max_parallel_parts() -> int:
    """Return the number of concurrent parts: one per core and 5 GB of free memory, plus one, as most parts wait."""
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    limit = min(len(os.sched_getaffinity(0)), int(meminfo["MemAvailable"].split()[0]) // 5_000_000)
    return max(1, limit + (limit > 1))
