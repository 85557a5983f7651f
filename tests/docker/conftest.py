"""The engine, the base image and the images that the docker tests share.

Images are built by `./lab build` when the first test wants them; what a build leaves behind is removed when it is done.
Each image's own tests run beside all that follows. gr00t, ws_mdl and hf come last, when the services' images are gone:
nothing but their own tests needs them.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.docker import base as base_image
from tests.docker import disk, hidden
from tests.docker import engine as engines
from tests.docker.beside import Beside
from tests.docker.builds import GROUPS, KEPT, NIGHTLY, Builds
from tests.docker.lab import ODD_USER, Lab
from tests.docker.packages import Unavailable
from tests.docker.watching import HealthWatch
from vlalab.engine import docker, images
from vlalab.testing import parts

ORDER = (
    "test_engine",
    "test_dotenv",
    "test_images",
    "test_neighbours",
    "test_gpus",
    "test_services",
    "test_evaluations",
    "test_traces",
    "test_bundles",
    "test_class",
    "test_gr00t",  # needs one of the last images
)
RUNTIME = ("--runtime", "docker")
USER = ODD_USER if os.geteuid() == 0 else (os.getuid(), os.getgid())  # whom containers run as


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Orders this folder's files: each one builds on what the ones before it brought up."""
    ours = [item for item in items if item.path.parent == Path(__file__).parent]
    ranked = iter(sorted(ours, key=rank))
    items[:] = [next(ranked) if item in ours else item for item in items]


def whose_own_tests(item: pytest.Item) -> str | None:
    """Returns the image whose own tests an item waits for; None for every other item."""
    name, _, image = item.name.partition("[")
    return image.rstrip("]") if name == "test_its_own_tests_pass_inside_it" else None


def rank(item: pytest.Item) -> int:
    """Returns an item's place. What is about the last images comes last, but for waiting for images' own tests."""
    if whose_own_tests(item):
        return len(ORDER) + 1
    of_last = item.path.stem == "test_images" and any(name in item.name for name in (*GROUPS[-1], *NIGHTLY))
    return len(ORDER) if of_last else ORDER.index(item.path.stem)


@pytest.fixture(scope="session")
def say(request: pytest.FixtureRequest):
    """Prints a line at once, although pytest keeps what tests print."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    began = time.monotonic()

    def write(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\nlab: docker tests, {time.monotonic() - began:.0f} s: {text}", end="", flush=True)

    return write


@pytest.fixture(scope="session")
def engine(say) -> Iterator[engines.Engine]:
    """An engine with enough disk, for the whole run; without one the tests are skipped with the reason."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the tests as Ctrl-C does: fixtures take down
    try:
        with engines.engine(say) as found:
            disk.check()
            yield found
    except Unavailable as error:
        pytest.skip(f"docker tests: {error}")


@pytest.fixture(scope="session")
def bases(engine, say) -> Iterator[dict[str, str]]:
    """The base images of all builds, by Python. Empty where only root makes them: the images' own serve."""
    nightly = {images.arguments(name)["PYTHON"] for name in NIGHTLY if os.environ.get(parts.NIGHTLY)}
    made: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="vlalab-base-", dir=engine.directory or engines.place()) as directory:
        try:
            for python in sorted({images.arguments(KEPT)["PYTHON"], *nightly}):
                if reference := base_image.image(Path(directory), say, python):
                    made[python] = reference
        except Unavailable as error:
            pytest.skip(f"docker tests: {error}")
    yield made
    if made:
        docker.run(["image", "rm", "--force", *made.values()], check=False)


@pytest.fixture(scope="session")
def lab(bases, engine) -> Iterator[Lab]:
    """`./lab` on the tests' engine. Its volume belongs to an odd user, or to the caller where we are not root."""
    with tempfile.TemporaryDirectory(prefix="vlalab-volume-", dir=engine.directory or engines.place()) as directory:
        os.chmod(directory, 0o755)
        volume = Path(directory) / "volume"
        volume.mkdir()
        if os.geteuid() == 0:
            os.chown(volume, *ODD_USER)
        found = Lab(volume, bases)
        yield found
        if left := found.ids():
            docker.run(["rm", "--force", *left], check=False)


@pytest.fixture(scope="session")
def beside(lab, say, request) -> Iterator[Beside]:
    """The images' own tests, three images' at a time where cores and memory allow."""
    names = {name for item in request.session.items if (name := whose_own_tests(item))}
    found = Beside(lab, say, ThreadPoolExecutor(min(3, parts.max_parallel_parts())), names)
    yield found
    found.stop()


@pytest.fixture(scope="session")
def builds(lab, engine, say, tmp_path_factory, beside) -> Iterator[Builds]:
    """Builds on demand; at the end every image is removed."""
    secrets = hidden.make(tmp_path_factory.mktemp("secrets"))
    found = Builds(lab, engine.directory is not None, say, secrets, beside)
    yield found
    beside.stop()
    for name in found.bytes:
        found.remove(name)


@pytest.fixture(scope="session")
def health(lab, builds, say) -> Iterator[dict[str, list[str]]]:
    """openvla (a tiny checkpoint) and ui are up; the health states they went through, by service."""
    for name in (name for group in GROUPS[:-1] for name in group):
        builds.get(name)
    say("openvla and ui go up")
    lab("checkpoint", "openvla", "--tiny", *RUNTIME)
    with HealthWatch(lab) as watch:
        lab("up", "openvla", "ui", "--checkpoint", "openvla-tiny", *RUNTIME)
    yield watch.seen
    lab("down", check=False)


@pytest.fixture
def up(health, lab) -> Lab:
    """The lab, with openvla and ui up."""
    return lab
