"""Tiny checkpoints, made once per run, and engines over them."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported

from pathlib import Path

import pytest

from services.openvla.checkpoint import tiny
from services.openvla.checkpoint.config import load_config
from services.openvla.service.loading import load_engine
from services.openvla.service.settings import ModelSettings


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """Returns a function: size -> folder of a tiny checkpoint of that size."""
    made: dict[str, Path] = {}
    root = tmp_path_factory.mktemp("checkpoints")

    def directory(size: str = "tiny") -> Path:
        if size not in made:
            made[size] = tiny.write(root / f"openvla-{size}", tiny.SPECS[size])
        return made[size]

    return directory


@pytest.fixture(scope="session")
def engines(checkpoints):
    """Returns a function: size -> engine in fp32 on the CPU with room for eight."""
    made = {}

    def engine(size: str = "tiny"):
        if size not in made:
            directory = checkpoints(size)
            settings = ModelSettings(device="cpu", dtype="fp32", max_batch=8)
            made[size] = load_engine(settings, directory, load_config(directory))[0]
        return made[size]

    return engine
