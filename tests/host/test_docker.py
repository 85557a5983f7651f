"""The docker CLI's ways to fail, told in words. Here `docker` is a script that says what the real one says."""

import json

import pytest

from vlalab.engine import docker
from vlalab.host.console import LabError

SOCKET = "unix:///var/run/docker.sock"
DOWN = f"Cannot connect to the Docker daemon at {SOCKET}. Is the docker daemon running?"
DENIED = f"permission denied while trying to connect to the Docker daemon socket at {SOCKET}"
NO_GPU = 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].'


def engine(version: str = "26.1.5+dfsg1", **info: object) -> str:
    """Returns the lines of an engine that answers `version` and `info`, and fails with its arguments otherwise."""
    server, about = json.dumps({"Server": {"Version": version}}), json.dumps(info)
    return f"""case "$1" in
version) echo '{server}' ;;
info) echo '{about}' ;;
*) echo "$@" >&2; exit 1 ;;
esac"""


def test_an_engine_that_answers_is_available(speaking):
    speaking(engine())
    assert docker.available() is None
    docker.require()


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (f'echo "{DOWN}" >&2; exit 1', "start it: sudo systemctl start docker"),
        (f'echo "{DENIED}" >&2; exit 1', "docker"),
        (engine("24.0.9"), "version 24.0.9; 25.0 or newer is needed"),
        ('echo "Emulate Docker CLI using podman." >&2; echo "{}"', "podman"),
        ('echo "unix://~/.docker/desktop/docker.sock is not there" >&2; exit 1', "Docker Desktop is not running"),
    ],
)
def test_why_no_engine_answers(speaking, lines, says):
    speaking(lines)
    assert says in docker.available()
    for call in (docker.require, lambda: docker.run(["ps"]), lambda: docker.stream(["ps"])):
        with pytest.raises(LabError):
            call()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("github.com/docker/buildx v0.12.0 542e5d8", None),
        ("github.com/docker/buildx 0.13.1+ds1 0.13.1+ds1-3", None),
        ("github.com/docker/buildx v0.9.1 ed00243", "version 0.9; 0.12 or newer"),
    ],
)
def test_versions_of_buildx(speaking, words, says):
    speaking(f'echo "{words}"')
    problem = docker.plugin_problem("buildx")
    assert problem is None if says is None else says in problem


@pytest.mark.parametrize("text", ["Docker Compose version v2.17.3", "Docker Compose version 2.9.0"])
def test_an_old_compose_is_named_when_it_fails(speaking, text):
    speaking(engine().replace("*)", f'compose) [ "$2" = version ] && echo "{text}" || exit 1 ;;\n*)'))
    with pytest.raises(LabError, match=r"2\.21 or newer is needed.*apt-get install"):
        docker.compose(["up"])


def test_a_missing_plugin_names_its_package(speaking):
    speaking(engine())
    assert "no buildx plugin" in docker.plugin_problem("buildx")
    with pytest.raises(LabError, match="docker-buildx-plugin"):
        docker.require("buildx")


def test_a_failed_command_is_repeated_with_the_engines_words(speaking):
    speaking(engine())
    with pytest.raises(LabError, match=r"`docker image rm 'a b'` failed:\n  image rm a b"):
        docker.run(["image", "rm", "a b"])
    assert docker.run(["image", "rm"], check=False).returncode == 1


@pytest.mark.parametrize(
    "words",
    [
        "failed to create network vla-lab-ben-4f_default: Error response from daemon: could not find an available, "
        "non-overlapping IPv4 address pool among the defaults to assign to the network",  # Engine 26
        "Error response from daemon: all predefined address pools have been fully subnetted",  # since Engine 27
    ],
)
def test_an_engine_without_addresses_for_a_network_is_reported_with_what_to_do(words):
    told = docker.failure(["compose", "up"], words)
    assert "docker network prune" in told and "./lab host setup --only engine" in told


@pytest.mark.parametrize(
    ("info", "says"),
    [
        ({"OperatingSystem": "Docker Desktop"}, "docker context use default"),
        ({"DockerRootDir": "/var/snap/docker/common"}, "snap remove docker"),
        ({"DockerRootDir": "/var/lib/docker", "OperatingSystem": "Ubuntu 22.04"}, "nvidia-ctk runtime configure"),
    ],
)
def test_containers_without_a_gpu_name_the_fix_for_that_docker(speaking, info, says):
    speaking(engine(**info))
    assert says in docker.failure(["run", "--gpus", "all"], NO_GPU)
    assert not docker.has_gpu_runtime()


@pytest.mark.parametrize(
    ("info", "given"),
    [
        ({"Runtimes": {"nvidia": {}, "runc": {}}}, True),
        ({"Runtimes": {"runc": {}}}, False),
    ],
)
def test_what_the_engine_has_registered_decides_whether_it_gives_gpus(speaking, tmp_path, info, given):
    speaking(engine(**info))
    hook = tmp_path / "nvidia-container-runtime-hook"
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    assert docker.has_gpu_runtime() == given, "a hook on PATH says nothing about the engine"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("write /var/lib/docker/x: no space left on device", "./lab clean"),
        ("Bind for 127.0.0.1:8001 failed: port is already allocated", "choose another"),
        ("tls: failed to verify certificate: x509: certificate signed by unknown authority", "--ca-bundle"),
        ("nvidia/cuda: failed to resolve source metadata for docker.io/nvidia/cuda", "./lab restore FILE"),
        ("Failed to initialize NVML: Unknown Error", "./lab restart"),
    ],
)
def test_what_the_engine_says_leads_to_a_next_step(words, says):
    assert says in docker.advice(words)


@pytest.mark.parametrize("text", ['[{"a": 1}, {"a": 2}]', '{"a": 1}\n{"a": 2}\n', ' [\n{"a": 1},\n{"a": 2}\n]\n'])
def test_json_comes_as_an_array_or_line_by_line(text):
    assert docker.parse_json(text) == [{"a": 1}, {"a": 2}]
    assert docker.parse_json("") == []
