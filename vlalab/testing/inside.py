"""Tests of an environment inside its image: same pins, same restrictions as its services, no network but loopback.

This tree's code is tested: over that of an image of another commit, this tree's services are mounted.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from vlalab.description import compose, gpus
from vlalab.engine import building, docker, images, volumes
from vlalab.host import paths
from vlalab.host.console import LabError
from vlalab.testing.results import Result, read_junit

HOME = "/opt/vla-lab"  # where an image stores the code
CODE = ("services", "lessons", *paths.SHARED)
VOLUME = ("assets", "checkpoints")  # what tests may read of the shared volume
NIGHTLY = "VLALAB_TEST_NIGHTLY"  # tests marked `nightly` run too
running: list[subprocess.Popen] = []  # processes of tests, which end with Ctrl-C
MAX_S = 2700  # of an environment's tests; the slowest take 13 min next to all others on two cores


def command(name: str, image: images.Image, report: Path, flags: Sequence[str] = ()) -> list[str]:
    """Return docker's arguments that run tests/<name> inside its image; pytest's report goes into `report`."""
    gpu = gpus.chosen(name, compose.environment_variables())
    mounted = ["pyproject.toml", "tests", "bench"]  # tests compare what benchmarks count
    if not has_this_code(image):
        mounted += CODE
    pairs = [(paths.ROOT / path, f"{HOME}/{path}") for path in mounted]
    pairs += [(paths.volume() / part, f"/volume/{part}") for part in VOLUME if (paths.volume() / part).is_dir()]
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
        *(word for here, there in pairs for word in ("--volume", f"{here}:{there}:ro")),
        image.reference, "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not outside",
        "--junitxml=/report/junit.xml", *flags, f"tests/{name}",
    ]  # fmt: skip


def has_this_code(image: images.Image) -> bool:
    """Return whether the image has this tree's services: same commit, no changes since on either side."""
    return image.revision == building.commit() and not image.revision.endswith(("-dirty", "unknown"))


def run(name: str, image: images.Image, flags: Sequence[str], output: TextIO | None) -> Result:
    """Return the counts of an environment's tests inside its image."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vlalab-test-") as directory:
        os.chmod(directory, 0o777)  # the user inside may be another one
        arguments = command(name, image, Path(directory), flags)
        process = docker.open_pipe(arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        running.append(process)
        try:
            code = process.wait(MAX_S)
        except BaseException as error:
            docker.run(["rm", "--force", arguments[arguments.index("--name") + 1]], check=False)
            if isinstance(error, subprocess.TimeoutExpired):
                raise LabError(f"the tests of {name} took more than {MAX_S // 60} min inside their image") from None
            raise
        result = read_junit(name, Path(directory) / "junit.xml", code)
    result.seconds = time.monotonic() - start
    return result
