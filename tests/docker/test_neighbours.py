"""Two users or clones on one engine: neither sees, stops, recreates or removes what is the other's."""

import json
import subprocess
import urllib.request

import pytest

from tests.docker.conftest import RUNTIME
from vlalab.engine import docker, images
from vlalab.host import state

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def neighbour(lab, builds):
    """The Compose project of another caller, whose policy `random` is up."""
    builds.get("libero")
    project = {"COMPOSE_PROJECT_NAME": f"vlalab-neighbour-{lab.name}"}
    lab("up", "random", *RUNTIME, **project)
    yield project
    lab("down", check=False, **project)


def running(project: str) -> list[dict]:
    """Returns what the engine says about the containers of a project."""
    ids = docker.run(["ps", "--quiet", "--filter", f"label=com.docker.compose.project={project}"]).stdout.split()
    return docker.parse_json(docker.run(["inspect", *ids]).stdout) if ids else []


def test_what_the_other_started_is_neither_seen_nor_stopped(lab, neighbour):
    (before,) = running(neighbour["COMPOSE_PROJECT_NAME"])
    (row,) = [line for line in lab("status").text.splitlines() if line.startswith("random ")]
    assert row.split()[1] == "down"
    assert lab("down", "random", check=False).code != 0
    mine = lab("up", "random", *RUNTIME).text
    assert f"port {lab.ports['random']} is already in use" in mine
    lab("restart", "random")
    lab("down")
    (after,) = running(neighbour["COMPOSE_PROJECT_NAME"])
    assert (after["Id"], after["State"]["StartedAt"]) == (before["Id"], before["State"]["StartedAt"])
    with urllib.request.urlopen(f"http://127.0.0.1:{lab.ports['random']}/readyz", timeout=60) as answer:
        assert answer.status == 200


def test_an_image_says_who_built_it_and_clean_takes_nobody_elses(lab, builds):
    builds.get("libero")
    mine = lab.image("libero")
    assert mine["Config"]["Labels"][images.OWNER_LABEL] == state.owner()
    theirs = f"vla-lab/libero:theirs-{lab.name}"
    words = ["build", "--quiet", "--tag", theirs, "--label", f"{images.OWNER_LABEL}=somebody-12345678", "-"]
    subprocess.run(docker.command(words), input=f"FROM {mine['RepoTags'][0]}\n", text=True, check=True)
    docker.run(["tag", mine["RepoTags"][0], old := f"vla-lab/libero:old-{lab.name}"])
    try:
        shown = lab("clean", "--dry-run", VLALAB_TAG="another").text
        assert old in shown and theirs not in shown
        assert theirs in lab("clean", "--dry-run", "--all-users", VLALAB_TAG="another").text
    finally:
        docker.run(["image", "rm", "--force", theirs, old], check=False)


def test_a_container_has_no_gpu_by_itself(lab, neighbour):
    (found,) = running(neighbour["COMPOSE_PROJECT_NAME"])
    assert "NVIDIA_VISIBLE_DEVICES=void" in found["Config"]["Env"]


def test_a_volume_that_is_missing_is_not_made(lab, builds, tmp_path):
    """By hand, as from a network disk that is not mounted yet."""
    builds.get("libero")
    gone = tmp_path / "gone"
    variables = {**lab.variables(), "VLALAB_VOLUME": str(gone), "COMPOSE_PROJECT_NAME": f"vlalab-gone-{lab.name}"}
    run = docker.compose_args(["run", "--rm", "--no-deps", "oracle", "true"])
    done = docker.run(run, check=False, variables=variables)
    docker.run(["network", "rm", f"vlalab-gone-{lab.name}_default"], check=False)
    assert done.returncode != 0 and "does not exist" in done.stderr and not gone.exists(), json.dumps(done.stderr)
