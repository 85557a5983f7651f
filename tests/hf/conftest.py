"""Fixtures for Hugging Face practice: a volume with small models, made once. Nothing here asks the hub."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported: tests share their cores with others
# A number of its own for all runs of a test, which are compared bit for bit: else each takes the cores idle just then.
os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))

import pytest
from transformers import AutoTokenizer

from services.hf import practice
from services.hf.made import models
from vla_common.volume import Volume

STEPS = 20  # of pre-training


@pytest.fixture(scope="session", autouse=True)
def silent():
    practice.quiet()


@pytest.fixture(scope="session")
def volume(tmp_path_factory) -> Volume:
    """A volume that all tests share: a model that one has made, the next one takes."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("VLALAB_VOLUME", str(tmp_path_factory.mktemp("volume")))
        yield Volume()


@pytest.fixture(scope="session")
def directories(volume):
    """The folders of the small models, by kind."""
    return {kind: models.directory_of(kind, volume, STEPS if kind != "t5" else 0) for kind in models.BUILD}


@pytest.fixture(scope="session")
def tokenizers(directories):
    """The small models' tokenizers, by kind, as they are loaded from their folders."""
    return {kind: AutoTokenizer.from_pretrained(directory) for kind, directory in directories.items()}
