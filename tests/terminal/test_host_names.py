"""Every service of compose.yaml in the local runtime: which `Host` and `Origin` it answers to without a token."""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.ports import free_ports
from vlalab.description import compose, ports
from vlalab.environments import venvs
from vlalab.host import paths
from vlalab.runtimes import local

ALLOWED = "lab.example.org"
SERVICES = [name for name, service in compose.read(variables={}).items() if service.ports]
# Makes the checkpoint that a model's service does not start without.
CHECKPOINTS = {
    "openvla": ("services.openvla.checkpoints", "--tiny", "--suite", "libero_goal"),
    "gr00t": ("services.gr00t.checkpoints", "--tiny"),
    "lerobot": ("services.lerobot.checkpoints", "--tiny", "--name", "lerobot-tiny"),
}
WEBSOCKET = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
             "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}  # fmt: skip


@pytest.fixture(scope="module")
def volume(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("volume")


def run_module(environment: str, volume: Path, *words: str) -> None:
    env = venvs.get(environment, paths.ROOT)
    variables = {**os.environ, **env.variables(), "VLALAB_VOLUME": str(volume), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([env.python, "-m", *words], env=variables, cwd=paths.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def settings(name: str, volume: Path, policy_url: str) -> dict[str, str]:
    """Returns what a service needs to start, made where it is not there yet."""
    if name in CHECKPOINTS:
        run_module(name, volume, *CHECKPOINTS[name])
        (directory,) = (path.name for path in (volume / "checkpoints").iterdir() if name in path.name)
        return {f"VLALAB_{name.upper()}_CHECKPOINT": directory}
    if name == "minivla":  # no weights: it answers to its name before it has loaded them
        weights = volume / "checkpoints/minivla/empty/minivla_000001.pt"
        weights.parent.mkdir(parents=True)
        weights.touch()
    if name == "replay":
        words = ["libero_goal", "--policy-url", policy_url, "--tasks", "0", "--trials", "1", "--max-steps", "4"]
        run_module("libero", volume, "services.libero", *words, "--run-id", "recorded", "--video", "none")
    return {
        "VLALAB_REPLAY_RUN": "recorded",
        "VLALAB_BRIDGE_SERVER": "ws://127.0.0.1:9",
        "VLALAB_OPENPI_POLICY": policy_url,
    }


@contextlib.contextmanager
def serving(name: str, volume: Path, **more: str) -> Iterator[str]:
    """Starts a service as the local runtime does, without a token; gives its address once it listens there."""
    (port,) = free_ports(1)
    variables = {
        "VLALAB_VOLUME": str(volume), "VLALAB_LISTEN": "127.0.0.1", "VLALAB_ALLOWED_HOSTS": ALLOWED,
        ports.port_variable(name): str(port), "OMP_NUM_THREADS": "1", **more,
    }  # fmt: skip
    service = compose.read(variables=variables)[name]
    command, declared = local.resolve(service, venvs.get(service.environment_name, paths.ROOT))
    if os.geteuid() == 0 and "vla_notebooks" in command:
        command.append("--allow-root")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("VLALAB_")}
    log = volume / f"{name}.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(command, env={**kept, **declared}, cwd=paths.ROOT, stdout=output, stderr=output)
    try:
        end = time.monotonic() + 120
        while status(f"http://127.0.0.1:{port}/livez") is None:
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def status(url: str, **headers: str) -> int | None:
    """Returns the status of a GET with these headers; None where nobody answers."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
    try:
        connection.putrequest("GET", parts.path, skip_host="Host" in headers)
        for header, value in headers.items():
            connection.putheader(header, value)
        connection.endheaders()
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_without_a_token_answers_to_loopback_and_configured_names_only(name, volume):
    service = compose.read(variables={})[name]
    for needed in (service.environment_name, "libero"):
        if not venvs.get(needed, paths.ROOT).is_ready():
            pytest.skip(f"environment {needed!r} is not made: ./lab env {needed}")
    with contextlib.ExitStack() as stack:
        policy_url = stack.enter_context(serving("random", volume)) if name in ("replay", "openpi") else ""
        url = stack.enter_context(serving(name, volume, **settings(name, volume, policy_url)))
        port = url.rpartition(":")[2]
        notebooks = "vla_notebooks" in service.command  # whose "/" is a bare redirection
        routes = [urlsplit(service.health.test[-1]).path, "/lab" if notebooks else "/"]
        routes += ["/v1/info"] if service.role == "policy" else []
        for route in routes:
            for host in (f"127.0.0.1:{port}", f"localhost:{port}", "localhost:59999", f"[::1]:{port}", ALLOWED):
                assert status(url + route, Host=host) not in (403, None), f"{route} for {host}"
            for host in (f"evil.example:{port}", f"localhost.evil.example:{port}", f"0.0.0.0:{port}"):
                assert status(url + route, Host=host) == 403, f"{route} for {host}"
        for origin in ("http://evil.example", "null"):
            assert status(url + routes[0], Origin=origin) in (403, 404), origin
        if name == "openpi":
            assert status(url + "/", **WEBSOCKET) == 101
            assert status(url + "/", Host=f"evil.example:{port}", **WEBSOCKET) == 403
