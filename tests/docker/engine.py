"""The engine that the tests use: the one that answers, or a private one where none does and one may be brought up.

VLALAB_TEST_DOCKER chooses: 0 (none: the tests are skipped), 1 (as if it were not set), private (bring one up in any
case), or an engine's address.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.docker import disk, keeper, packages
from tests.docker.packages import Unavailable
from vlalab.engine import docker
from vlalab.host import paths

CHOICE = "VLALAB_TEST_DOCKER"
PREFIX = "vlalab-docker-"  # of a private engine's folder; short, since sockets in it have 107 bytes for their path
OWN_MOUNTS = ("unshare", "--mount", "--propagation", "slave")


@dataclass(frozen=True)
class Engine:
    """A Docker engine. `folder`: where a private one keeps everything, None for one that was there before."""

    variables: dict[str, str] = field(default_factory=dict)  # what makes the docker command reach it
    directory: Path | None = None


def may_be_private() -> str | None:
    """Returns why no engine can be brought up here, or None. Asks nothing that takes long."""
    if os.geteuid() != 0:
        return "bringing up a private one needs root"
    try:
        packages.system()
    except Unavailable as error:
        return str(error)
    return None


@contextlib.contextmanager
def engine(say: Callable[[str], None] = print, programs: Path | None = None) -> Iterator[Engine]:
    """Holds an engine for the tests, and says which. Raises Unavailable, with a sentence for the user, without one.

    programs: folder of another private engine, whose programs a private one links instead of fetching them.
    """
    choice = os.environ.get(CHOICE) or "1"
    if choice == "0":
        raise Unavailable(f"{CHOICE}=0 asks for no Docker tests")
    no_answer = docker.available() if choice == "1" else None
    if choice == "private" or no_answer:
        if why := may_be_private():
            raise Unavailable("; ".join(filter(None, [no_answer, why])))
        with _private(say, programs) as found, _reached_by(found.variables):
            yield found
    else:
        with _reached_by({} if choice == "1" else {"DOCKER_HOST": choice}):
            yield _theirs(say, choice)


def _theirs(say: Callable[[str], None], choice: str) -> Engine:
    """Returns an engine that was there before. Raises Unavailable where it does not answer or cannot serve."""
    if reason := docker.available():
        raise Unavailable(f"{CHOICE}={choice}: {reason}")
    if docker.is_rootless():
        raise Unavailable("the engine here is rootless, and these tests hold file owners as another one gives them")
    say("using the engine that answers" if choice == "1" else f"using the engine at {choice}")
    return Engine()


@contextlib.contextmanager
def _reached_by(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


@contextlib.contextmanager
def _private(say: Callable[[str], None], programs: Path | None) -> Iterator[Engine]:
    """Holds an engine of the tests' own. Its keeper ends when its stdin does: with this block or with this process."""
    parent = place()
    keeper.sweep(parent, PREFIX)
    disk.check_place(parent)
    packages.install("iptables", "iproute2")
    _check_mounts()
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    say(f"bringing up a private engine in {directory}")
    directories = [str(one) for one in (directory, programs) if one]
    command = [*OWN_MOUNTS, sys.executable, "-m", "tests.docker.keeper", *directories]
    process = subprocess.Popen(
        command, cwd=paths.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield _as_engine(json.loads(process.stdout.readline() or "{}"), directory)
    finally:
        process.stdin.close()
        process.wait()
        keeper.release(directory)  # nothing is left of it, unless the keeper was killed


def _check_mounts() -> None:
    """Raises Unavailable where a process may not have mounts of its own, as in an unprivileged container."""
    asked = subprocess.run([*OWN_MOUNTS, "true"], capture_output=True, text=True)
    if asked.returncode != 0:
        raise Unavailable(f"root may not mount anything here (an unprivileged container?): {asked.stderr.strip()}")


def _as_engine(said: dict, directory: Path) -> Engine:
    if "host" not in said:
        raise Unavailable(said.get("reason", "the private engine's keeper ended without a word (see above)"))
    path = os.environ.get("PATH", os.defpath)
    return Engine(
        {
            "DOCKER_HOST": said["host"],
            "DOCKER_CONFIG": said["config"],
            "PATH": os.pathsep.join([path, *said["path"]]),  # behind: a docker command that is there is used
        },
        directory,
    )


@functools.cache
def place() -> Path:
    """Returns the folder for a private engine: a disk that overlays can lie on, else the one with most space."""
    parents = [Path(tempfile.gettempdir()), Path("/var/tmp")]
    return max(parents, key=lambda path: (filesystem(path) not in ("tmpfs", "overlayfs"), disk.free_bytes(path)))


def filesystem(path: Path) -> str:
    """Returns the kind of file system a path lies on: "ext2/ext3", "overlayfs", "tmpfs" …"""
    return subprocess.run(["stat", "-f", "-c", "%T", str(path)], capture_output=True, text=True).stdout.strip()
