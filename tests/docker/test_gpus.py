"""What the engine asks NVIDIA's hook for, with a hook that only writes it down: no GPU is needed."""

import json
import subprocess
import sys

import pytest

from tests.docker.keeper import GPU_REQUESTS
from vlalab.engine import docker
from vlalab.host import paths

pytestmark = pytest.mark.docker
CHOICES = ("0", "0,1", "all", "GPU-5d5ba0d6-1d33-d6b9-7cd1-a5bd2f0f6a1c", "none")
# `./lab shell libero --command true --runtime docker` once without a choice and once for each, in one process: prints
# what the hook wrote down, by choice.
SHELLS = """
import json, os, pathlib, sys
from vlalab.commands import lifecycle
notes, told = pathlib.Path(sys.argv[1]), {}
for choice in ["", *sys.argv[2:]]:
    os.environ.update({"VLALAB_LIBERO_GPU": choice} if choice else {})
    notes.unlink(missing_ok=True)
    if code := lifecycle.shell("libero", "docker", "true"):
        sys.exit(code)
    told[choice] = notes.read_text().split() if notes.exists() else []
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(engine, lab, builds):
    """What NVIDIA's hook was told when a command line ran in libero's image, by what was chosen; "": nothing was."""
    if engine.directory is None:
        pytest.skip("the engine is not the tests' own, which has the hook that writes down")
    builds.get("libero")
    command = [sys.executable, "-c", SHELLS, str(engine.directory / GPU_REQUESTS), *CHOICES]
    done = subprocess.run(command, cwd=paths.ROOT, env=lab.variables(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("choice", CHOICES[:-1])
def test_a_service_gets_the_devices_it_was_given_over_the_void_of_its_image(told, choice):
    assert told[choice] == [f'"NVIDIA_VISIBLE_DEVICES={choice}"']


@pytest.mark.parametrize("choice", ["", "none"])
def test_a_service_that_was_given_none_asks_for_none(told, choice):
    assert told[choice] == []


def test_a_hook_on_path_is_not_a_registered_runtime(told):
    assert not docker.has_gpu_runtime()
