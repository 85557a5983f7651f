"""Tests of an environment inside its image: same pins, same restrictions as its services, no network but loopback.

What is tested is always this tree's code: an image of another commit gets this tree's services mounted over its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from vlalab.description import compose, gpus
from vlalab.engine import building, docker, images, volumes
from vlalab.host import paths
from vlalab.host.console import LabError
from vlalab.testing.sidebyside import THREADS

HOME = "/opt/vla-lab"  # where an image keeps the code
CODE = ("services", "lessons", *paths.SHARED)
VOLUME = ("assets", "checkpoints")  # what tests may read of the shared volume; all else there is theirs alone
# Its arguments are pytest's. What either version of control groups counted for the container is kept.
MEASURED = """python -m pytest "$@"; code=$?
cat /sys/fs/cgroup/cpu.stat /sys/fs/cgroup/cpuacct/cpuacct.usage > /report/cpu 2> /dev/null; exit $code"""
NIGHTLY = "VLALAB_TEST_NIGHTLY"  # variable: tests marked `nightly` run too
MOST_S = 2700  # of an environment's tests; the slowest take 13 min beside all others on two cores


def command(name: str, image: images.Image, report: Path, more: Sequence[str] = ()) -> list[str]:
    """Returns the arguments of docker that run tests/<name> inside its image; pytest's report goes into `report`.

    more: further flags of pytest.
    """
    tests = ["-q", "-p", "no:cacheprovider", "-m", "not outside", "--junitxml=/report/junit.xml", *more]
    return [
        "run", "--rm", "--init", "--name", f"vla-lab-test-{name}-{os.getpid()}",
        "--user", ":".join(map(str, volumes.container_user())), "--read-only", "--network", "none", "--cap-drop", "ALL",
        "--security-opt", "no-new-privileges", "--shm-size", "1g",
        "--tmpfs", "/tmp:rw,exec,mode=1777", "--tmpfs", "/volume:rw,mode=1777",
        "--env", "PYTHONDONTWRITEBYTECODE=1", "--env", "PYTHONUNBUFFERED=1",
        "--env", "PYTHONPATH=" + ":".join((HOME, *(f"{HOME}/{part}" for part in paths.SHARED))),  # as the images
        "--env", "NVIDIA_VISIBLE_DEVICES=void", *gpu_flags(name), "--env", THREADS, "--env", NIGHTLY,  # where set
        "--volume", f"{report}:/report",
        *mounts(name, image),
        image.reference, "sh", "-c", MEASURED, "sh", *tests, f"tests/{name}",
    ]  # fmt: skip


def gpu_flags(name: str) -> list[str]:
    """Returns the flags for the GPUs that VLALAB_<ENV>_GPU names. Unasked there is none: others may be computing."""
    choice = gpus.chosen(name, compose.environment_variables())
    if choice in ("", "none"):
        return []
    return ["--gpus", "all" if choice == "all" else f'"device={choice}"']  # quoted: a comma would end the field


def mounts(name: str, image: images.Image) -> list[str]:
    """Returns the flags that mount, read-only, the tests, this tree's code where the image has another, and assets."""
    inner = ["pyproject.toml", "tests", "bench"]  # tests hold what benchmarks count to the truth
    if not has_this_code(image):
        inner += [path.format(name=name) for path in CODE]
    pairs = [(paths.ROOT / path, f"{HOME}/{path}") for path in inner]
    pairs += [(paths.volume() / name, f"/volume/{name}") for name in VOLUME if (paths.volume() / name).is_dir()]
    return [word for here, there in pairs for word in ("--volume", f"{here}:{there}:ro")]


def has_this_code(image: images.Image) -> bool:
    """Returns whether the image holds this tree's services: same commit, and nothing changed since on either side."""
    return image.revision == building.commit() and not image.revision.endswith(("-dirty", "unknown"))


def run(name: str, image: images.Image, more: Sequence[str] = ()) -> tuple[int, str, float]:
    """Returns pytest's exit code, its report (XML, "" when there is none) and the container's processor time in s.

    What pytest prints goes to the terminal.
    """
    with tempfile.TemporaryDirectory(prefix="vlalab-test-") as folder:
        os.chmod(folder, 0o777)  # the user inside may be another one
        container = command(name, image, Path(folder), more)
        process = docker.open_pipe(container, stdin=subprocess.DEVNULL)
        try:
            code = process.wait(MOST_S)
        except BaseException as error:
            docker.run(["rm", "--force", container[container.index("--name") + 1]], check=False)
            if isinstance(error, subprocess.TimeoutExpired):
                raise LabError(f"the tests of {name} took more than {MOST_S // 60} min inside their image") from None
            raise
        report, spent = (
            path.read_text() if path.exists() else "" for path in (Path(folder) / "junit.xml", Path(folder) / "cpu")
        )
        return code, report, cpu_seconds(spent)


def cpu_seconds(said: str) -> float:
    """Returns the processor time that a control group's file says, in s; 0 where it says none.

    Version 2 of control groups counts microseconds, in a line of `cpu.stat`; version 1 nanoseconds, alone in a file.
    """
    if found := re.search(r"(?m)^usage_usec (\d+)$", said):
        return int(found[1]) / 1e6
    found = re.search(r"(?m)^(\d+)$", said)
    return int(found[1]) / 1e9 if found else 0.0
