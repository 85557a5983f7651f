"""What the engine asks NVIDIA's hook for, with a hook that only writes it down: no GPU is needed."""

import pytest

from tests.docker.conftest import RUNTIME
from tests.docker.keeper import GPU_REQUESTS
from vlalab.engine import docker

pytestmark = pytest.mark.docker


@pytest.fixture
def asked(engine, lab, builds):
    """Returns a function that runs a command line in libero's image, and gives what NVIDIA's hook was then told."""
    if engine.folder is None:
        pytest.skip("the engine is not the tests' own, which has the hook that writes down")
    builds.get("libero")
    notes = engine.folder / GPU_REQUESTS

    def run(**variables: str) -> list[str]:
        notes.unlink(missing_ok=True)
        lab("shell", "libero", "--command", "true", *RUNTIME, **variables)
        return notes.read_text().split() if notes.exists() else []

    return run


@pytest.mark.parametrize("choice", ["0", "0,1", "all", "GPU-5d5ba0d6-1d33-d6b9-7cd1-a5bd2f0f6a1c"])
def test_a_service_gets_the_devices_it_was_given_over_the_void_of_its_image(asked, choice):
    assert asked(VLALAB_LIBERO_GPU=choice) == [f'"NVIDIA_VISIBLE_DEVICES={choice}"']


@pytest.mark.parametrize("variables", [{}, {"VLALAB_LIBERO_GPU": "none"}])
def test_a_service_that_was_given_none_asks_for_none(asked, variables):
    assert asked(**variables) == []


def test_a_hook_on_path_is_no_registered_runtime(asked):
    assert not docker.has_gpu_runtime()
