"""The product's own commands against the tests' engine, and what the engine says about what they made."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest

from tests.ports import free_ports
from vlalab.description import compose, ports
from vlalab.engine import docker, images
from vlalab.host import paths
from vlalab.testing.run import THREADS

# Another uid than that of anybody here, so that what a container leaves behind cannot look right by chance.
ODD_USER = (4321, 4322)


@dataclass
class Lab:
    """`./lab` with a tag, a Compose project, ports and a volume of the tests' own. Calling it runs a task."""

    volume: Path
    bases: Mapping[str, str]  # Python → reference of the base image; without one the images' own
    name: str = field(default_factory=lambda: f"test-{secrets.token_hex(3)}")

    def variables(self) -> dict[str, str]:
        """Returns the environment of a command: nothing of the caller's settings, all of the tests'."""
        pythons = {name: images.arguments(name)["PYTHON"] for name in images.buildable()}
        bases = {name: self.bases[python] for name, python in pythons.items() if python in self.bases}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("VLALAB_", "COMPOSE_"))}
        own = {
            "VLALAB_TAG": self.name,
            "VLALAB_UI_SERVICES": "openvla=http://openvla:8000",  # so that `up ui` brings no others
            "COMPOSE_PROJECT_NAME": f"vlalab-{self.name}",
            "VLALAB_VOLUME": str(self.volume),
            "VLALAB_STATE": str(self.volume.with_name(f"{self.volume.name}-state")),
            **{f"VLALAB_BASE_{name.upper()}": base for name, base in bases.items()},
            **({"VLALAB_BASE_DEVEL": bases["openvla"]} if bases else {}),
            **{ports.port_variable(name): str(port) for name, port in self.ports.items()},
        }
        record = os.environ.get("VLALAB_TEST_RECORD")
        return {**kept, **own, **({"VLALAB_TEST_RECORD": record} if record else {})}

    def __post_init__(self) -> None:
        self.ports = dict(zip(compose.read(variables={}), free_ports(32), strict=False))

    def __call__(
        self, *words: str, check: bool = True, timeout_s: float = 1800,
        hear: Callable[[str], None] | None = None, **more: str,
    ) -> Done:  # fmt: skip
        """Returns what `./lab WORDS` came to. A task that fails, fails the test with the end of its words.

        hear: is called with each line as it comes.
        """
        with self.started(*words, **more) as process:
            heard = _Heard(process.stdout, hear or (lambda _: None))
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                process.wait(60)
                heard.lines.append(f"\n… took more than {timeout_s:.0f} s")
            heard.join(60)
        done = Done(process.returncode, "".join(heard.lines))
        if check and done.code != 0:
            pytest.fail(f"./lab {' '.join(words)} ended with {done.code}:\n{done.text[-6000:]}", pytrace=False)
        return done

    @contextlib.contextmanager
    def started(self, *words: str, **more: str) -> Iterator[subprocess.Popen]:
        """Holds a running `./lab WORDS`, stdout and stderr in one stream; it is ended with the block."""
        process = subprocess.Popen(
            [str(paths.ROOT / "lab"), *words], cwd=paths.ROOT, env={**self.variables(), **more},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)  # and the docker command that it waits for
                process.wait(60)

    def image(self, name: str) -> dict:
        """Returns what `docker image inspect` says about an environment's image."""
        return docker.json_lines(["image", "inspect", images.reference(name, self.name)])[0]

    def container(self, service: str) -> dict:
        """Returns what `docker inspect` says about a service's container, running or not."""
        found = self.ids(service)
        assert len(found) == 1, f"{service} has {len(found)} containers"
        return docker.json_lines(["inspect", *found])[0]

    def ids(self, service: str = "") -> list[str]:
        """Returns the ids of this project's containers, or of one service's, stopped ones too."""
        labels = [f"com.docker.compose.project=vlalab-{self.name}"]
        labels += [f"com.docker.compose.service={service}"] if service else []
        filters = [word for label in labels for word in ("--filter", f"label={label}")]
        return docker.run(["ps", "--all", "--no-trunc", "--quiet", *filters]).stdout.split()

    def run_in(self, name: str, *command: str, user: str = "4321:4322", flags: tuple[str, ...] = ()) -> Done:
        """Returns what a command came to in a fresh container of an image: read-only root, no network.

        It computes in as many threads as the tests themselves do.
        """
        done = docker.run(
            ["run", "--rm", "--read-only", "--tmpfs", "/tmp:rw,exec,mode=1777", "--network", "none", "--user", user,
             "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--env", THREADS, *flags,
             images.reference(name, self.name), *command],
            check=False,
        )  # fmt: skip
        return Done(done.returncode, done.stdout + done.stderr, done.stdout)


class _Heard(threading.Thread):
    """Reads a stream to its end, a line at a time."""

    def __init__(self, stream: IO[str], hear: Callable[[str], None]) -> None:
        super().__init__(daemon=True)
        self.stream, self.hear, self.lines = stream, hear, []
        self.start()

    def run(self) -> None:
        for line in self.stream:
            self.lines.append(line)
            self.hear(line)


@dataclass(frozen=True)
class Done:
    """What a command came to: its exit code, what it said on both streams and, where they are apart, on stdout."""

    code: int
    text: str
    stdout: str = ""


def wait_until(
    condition: Callable[[], object], what: str, timeout_s: float = 60, process: subprocess.Popen | None = None
) -> object:
    """Returns the first true value of a condition; fails the test when it does not come true in time.

    process: without which it never will; what it printed is told when it has ended.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        ended = process is not None and process.poll() is not None
        if found := condition():
            return found
        assert not ended, f"ended before {what}:\n{process.stdout.read()}"
        assert time.monotonic() < deadline, f"waited {timeout_s:.0f} s for {what}"
        time.sleep(0.2)
