"""Settings of a service that is up are never dropped unsaid: real services, and what a container shows."""

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from vlalab.description import compose, ports, service_settings
from vlalab.environments import venvs
from vlalab.runtimes import containers

TOKEN, OTHER = "the-first-token-0123456789", "another-token-0123456789"


@pytest.fixture
def lab(tmp_path):
    """Runs a command of this lab with a volume, a state folder and a port of its own; returns what it said."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    own = {
        "VLALAB_VOLUME": str(tmp_path / "volume"),
        "VLALAB_STATE": str(tmp_path / "state"),
        "VLALAB_ORACLE_PORT": port,
    }
    plain = {name: value for name, value in os.environ.items() if name not in ("VLALAB_TOKEN", "VLALAB_BIND")}

    def run(*words: str, **variables: str) -> str:
        line = [sys.executable, "-I", "-m", "vlalab", *words]
        done = subprocess.run(line, env={**plain, **own, **variables}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    run.url = f"http://127.0.0.1:{port}/v1/info"
    yield run
    run("down")


def answers(url: str, token: str = "") -> bool:
    """Returns whether a service lets in who has that token."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        return urllib.request.urlopen(request, timeout=30).status == 200
    except urllib.error.HTTPError as error:
        assert error.code == 401
        return False


def test_a_local_service_keeps_what_it_has_says_what_differs_and_takes_it_when_told(lab, tmp_path):
    if not venvs.get("libero").is_ready():
        pytest.skip("the environment libero is not set up: ./lab env libero")
    up = ("up", "oracle", "--runtime", "local")
    lab(*up, VLALAB_TOKEN=TOKEN)
    assert "starting" not in lab(*up) and answers(lab.url, TOKEN)  # nothing else is asked for
    said = lab(*up, VLALAB_TOKEN=OTHER, VLALAB_BIND="127.0.0.2")
    assert "the requested ones differ in VLALAB_BIND, VLALAB_TOKEN." in said and "./lab up oracle --restart" in said
    assert "starting" not in said and answers(lab.url, TOKEN)
    assert "starting" not in lab(*up, VLALAB_BIND="127.0.0.1")  # the default, in words
    assert "asked for" not in lab("restart", "oracle")
    assert answers(lab.url, TOKEN) and not answers(lab.url)
    assert "the requested ones differ in VLALAB_TOKEN." in lab("restart", "oracle", VLALAB_TOKEN="")
    assert answers(lab.url, TOKEN) and not answers(lab.url)
    assert "restarts with new settings: VLALAB_TOKEN" in lab(*up, "--restart", VLALAB_TOKEN=OTHER)
    assert answers(lab.url, OTHER) and not answers(lab.url, TOKEN)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert (
        files and [path for path in files if {TOKEN.encode(), OTHER.encode()} & {*path.read_bytes().split(b'"')}] == []
    )


@pytest.mark.parametrize("service", [name for name, one in compose.read(variables={}).items() if one.role != "job"])
def test_a_container_shows_what_it_was_started_with(service):
    given = {"VLALAB_TOKEN": TOKEN, "VLALAB_BIND": "10.0.0.1", "VLALAB_LISTEN": "0.0.0.0"}
    described = compose.read(variables=given)[service]
    environment = json.loads(json.dumps(dict(described.environment)))
    had = service_settings.of_container(service, environment, list(described.command))
    assert {name: had[name] for name in given} == given
    assert ports.port_variable(service) not in had


@pytest.mark.parametrize(
    ("variables", "shown"),
    [({}, ""), ({"VLALAB_OPENVLA_PORT": "8100"}, ""), ({"VLALAB_UI_POLICY": "http://oracle:8001"},) * 2],
)
def test_a_default_that_follows_another_variable_is_not_a_setting(variables, shown):
    """Or the page would keep openvla's old address when that has moved."""
    command = compose.read(variables=variables)["ui"].command
    had = service_settings.of_container("ui", {}, list(command))
    assert had["VLALAB_UI_POLICY"] == (shown and shown["VLALAB_UI_POLICY"])


def test_what_a_container_was_started_with_is_held_against_what_is_requested():
    described = compose.read(variables={"VLALAB_TOKEN": TOKEN})["oracle"]
    record = {
        "Id": "1", "Name": "/oracle", "Image": "x", "State": {"Status": "running", "StartedAt": "2026-01-01T00:00:00Z"},
        "HostConfig": {},
        "Config": {
            "Labels": {f"{containers.LABEL}service": "oracle"}, "Cmd": list(described.command),
            "Env": ["PATH=/bin", *("=".join(pair) for pair in described.environment.items())],
        },
    }  # fmt: skip
    found = containers._container(record)
    had = found.started_with()
    assert service_settings.differing("oracle", had, {}) == []
    assert (
        service_settings.differing(
            "oracle", had, {"VLALAB_TOKEN": TOKEN, "VLALAB_BIND": "127.0.0.1", "VLALAB_UI_POLICY": "x"}
        )
        == []
    )
    assert service_settings.differing("oracle", had, {"VLALAB_TOKEN": OTHER, "VLALAB_BIND": "::1"}) == [
        "VLALAB_BIND",
        "VLALAB_TOKEN",
    ]
    assert TOKEN not in repr(found)
