"""The engine, the base image and the images that the docker tests share; and the figures they end with.

Images are built by `./lab build` when the first test wants them; what a build leaves behind is removed when it is done.
Those that only their own tests need (gr00t, ws_mdl) go before the next one is built: one large one at a time.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.docker import base as base_image
from tests.docker import disk, hidden
from tests.docker import engine as engines
from tests.docker.lab import ODD_USER, Lab
from tests.docker.packages import Unavailable
from tests.docker.watching import HealthWatch
from vlalab import building, docker, images

GB = 1e9
ORDER = ("test_engine", "test_images", "test_services", "test_evaluations", "test_traces", "test_bundles")
RUNTIME = ("--runtime", "docker")
USER = ODD_USER if os.geteuid() == 0 else (os.getuid(), os.getgid())  # whom containers run as
KEPT = ("libero", "openvla", "ui")  # for the tests of services, after those of images


@dataclass
class Builds:
    """Builds images, each once, and keeps what they took."""

    lab: Lab
    private: bool
    say: Callable[[str], None]
    secrets: hidden.Secrets
    seconds: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    commits: dict[str, str] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)

    def get(self, name: str) -> str:
        """Returns the reference of an image, built at the first call. What failed once is not tried again."""
        if name in self.failed:
            pytest.fail(f"the image of {name} could not be built: see the first test that wanted it")
        if name not in self.seconds:
            self.failed.add(name)
            self._build(name)
            self.failed.remove(name)
        return images.reference(name, self.lab.name)

    def _build(self, name: str) -> None:
        flags = [*self.flags(name), *self.secrets.flags(), "--progress", "plain"]
        self.say(f"building {name}")
        started = time.monotonic()
        self.commits[name] = building.commit()
        self.words[name] = self.lab("build", name, *flags, timeout_s=1500).text
        self.seconds[name] = time.monotonic() - started
        self.bytes[name] = self.lab.image(name)["Size"]
        self.say(f"built {name} in {self.seconds[name]:.0f} s: {self.bytes[name] / GB:.2f} GB")
        self._prune()

    def flags(self, name: str) -> list[str]:
        """Returns the flags of a build. flash-attn and Isaac-GR00T are on no package index and may be out of reach."""
        text = (images.folder(name) / "Dockerfile").read_text()
        flags = ["--flash-attn", "none"] if "FLASH_ATTN" in building.declared(text) else []
        if (source := re.search(r"GR00T_URL=(\S+)", text)) and not answers(source[1]):
            self.say("Isaac-GR00T cannot be fetched here: its image is built up to it")
            flags += ["--gr00t-source", "none"]
        return flags

    def remove(self, name: str) -> None:
        """Removes an image."""
        docker.run(["image", "rm", "--force", images.reference(name, self.lab.name)], check=False)

    def _prune(self) -> None:
        """Removes what builds left behind, downloads too, on an engine of the tests' own."""
        if self.private:
            docker.run(["builder", "prune", "--all", "--force"], check=False)


def answers(repository: str) -> bool:
    """Returns whether a git repository can be fetched from here."""
    command = ["git", "ls-remote", "--exit-code", repository, "HEAD"]
    try:
        asked = subprocess.run(command, capture_output=True, timeout=20, env={**os.environ, "GIT_TERMINAL_PROMPT": "0"})
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Orders this folder's files: each one builds on what the ones before it brought up."""
    ours = [item for item in items if item.path.parent == Path(__file__).parent]
    ranked = iter(sorted(ours, key=lambda item: ORDER.index(item.path.stem)))
    items[:] = [next(ranked) if item in ours else item for item in items]


FIGURES: pytest.StashKey[list[str]] = pytest.StashKey()


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    """Prints build times, sizes and disk."""
    for line in config.stash.get(FIGURES, []):
        terminalreporter.write_line(line)


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
def engine(say, request) -> Iterator[engines.Engine]:
    """An engine with enough disk, for the whole run; without one the tests are skipped with the reason."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the tests as Ctrl-C does: fixtures take down
    place = engines.place()
    before = disk.free_bytes(place)
    try:
        if os.geteuid() == 0:
            base_image.python()
        with engines.engine(say) as found:
            disk.check()
            with disk.Peak(disk.engine_root() or place) as peak:
                yield found
    except Unavailable as error:
        pytest.skip(f"docker tests: {error}")
    request.config.stash.setdefault(FIGURES, []).append(
        f"disk: {peak.used() / GB:.1f} GB used at the most; {before / GB:.1f} GB free before, "
        f"{disk.free_bytes(place) / GB:.1f} GB after"
    )


@pytest.fixture(scope="session")
def base(engine, say) -> Iterator[str | None]:
    """The base image that everything is built on. None, the Dockerfiles' own, where only root could make another."""
    with tempfile.TemporaryDirectory(prefix="vlalab-base-", dir=engine.folder or engines.place()) as folder:
        try:
            reference = base_image.image(Path(folder), say)
        except Unavailable as error:
            pytest.skip(f"docker tests: {error}")
    yield reference
    if reference:
        docker.run(["image", "rm", "--force", reference], check=False)


@pytest.fixture(scope="session")
def lab(base, engine) -> Iterator[Lab]:
    """`./lab` on the tests' engine. Its volume belongs to an odd user, or to the caller where we are not root."""
    with tempfile.TemporaryDirectory(prefix="vlalab-volume-", dir=engine.folder or engines.place()) as folder:
        os.chmod(folder, 0o755)
        volume = Path(folder) / "volume"
        volume.mkdir()
        if os.geteuid() == 0:
            os.chown(volume, *ODD_USER)
        found = Lab(volume, base)
        yield found
        if left := found.ids():
            docker.run(["rm", "--force", *left], check=False)


@pytest.fixture(scope="session")
def builds(lab, engine, say, request, tmp_path_factory) -> Iterator[Builds]:
    """Builds on demand; at the end every image is removed, and time and size of each become figures."""
    found = Builds(lab, engine.folder is not None, say, hidden.make(tmp_path_factory.mktemp("secrets")))
    yield found
    for name, seconds in found.seconds.items():
        figure = f"image {name:<8} built in {seconds:4.0f} s, {found.bytes[name] / GB:5.2f} GB"
        request.config.stash.setdefault(FIGURES, []).append(figure)
        found.remove(name)


@pytest.fixture(scope="session")
def health(lab, builds, say) -> Iterator[dict[str, list[str]]]:
    """openvla (a tiny checkpoint) and ui are up; the health states they went through, by service."""
    for name in KEPT:
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
