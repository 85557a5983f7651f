"""A copy of the repository's files, as a fresh clone has them; and a docker command that says what a test wants."""

import os
import re
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from vlalab.engine import docker
from vlalab.host import state

ROOT = Path(__file__).resolve().parents[2]


def copy_clone(target: Path) -> Path:
    """Copies what git would hand out (uncommitted work included) into `target`; returns it."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True) if shutil.which("git") else None
    if listed is None or listed.returncode != 0:  # an unpacked archive
        ignore = shutil.ignore_patterns(".venv", ".git", "__pycache__", "volume")
        return Path(shutil.copytree(ROOT, target, ignore=ignore))
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def pins(*names: str, lock: Path = ROOT / "requirements.lock") -> str:
    """Returns the entries of these packages in a lock, the host tool's."""
    text = lock.read_text()
    found = [one for name in names for one in re.findall(rf"(?ms)^{name}==.*?(?=^\S|\Z)", text)]  # one per Python
    return "".join(line for line in "".join(found).splitlines(keepends=True) if not line.strip().startswith("#"))


def with_few_packages(clone: Path, *more: str) -> Path:
    """Leaves a clone the pins of what every task imports, and of `more`: tests' and tools' take most of a set-up."""
    (clone / "requirements.lock").write_text(pins("python-dotenv", "pyyaml", "rich", *more))
    return clone


@pytest.fixture(scope="session", name="copy_clone")
def the_copier():
    """The function that makes a fresh clone in a folder of the test's choice."""
    return copy_clone


@pytest.fixture(scope="module")
def fresh_clone(tmp_path_factory) -> Path:
    """A fresh clone in a folder whose name has a space."""
    return copy_clone(tmp_path_factory.mktemp("a place") / "vla lab")


@pytest.fixture(autouse=True)
def state_of_its_own(tmp_path_factory, monkeypatch):
    """What a test starts and notes is nobody else's."""
    monkeypatch.setenv(state.VARIABLE, str(tmp_path_factory.mktemp("state")))
    monkeypatch.setenv("VLALAB_STEWARD", "off")  # a page that a test starts has none, unless the test is about it


@pytest.fixture
def speaking(tmp_path, monkeypatch):
    """Returns a function that puts a docker command on PATH: it runs those lines of sh for every call."""
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)

    def put(lines: str):
        docker._probe.cache_clear()
        docker.plugin_problem.cache_clear()
        docker.info.cache_clear()
        program = tmp_path / "docker"
        program.write_text(f"#!/bin/sh\n{lines}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")

    yield put
    for cached in (docker._probe, docker.plugin_problem, docker.info):
        cached.cache_clear()


@pytest.fixture
def answering():
    """Returns a function that serves one status to every GET and returns the URL."""
    servers = []

    def serve(status: int) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        servers.append(server := ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/readyz"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()
