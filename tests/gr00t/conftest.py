"""Fixtures for everything tested inside the gr00t environment; without Isaac-GR00T's package, its tests are skipped."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHARED = [str(ROOT / "shared" / name) for name in ("common", "contract", "modelkit")]
for entry in (str(ROOT), *SHARED):
    if entry not in sys.path:
        sys.path.insert(0, entry)
os.environ["HF_HUB_OFFLINE"] = "1"  # no test may depend on a model hub, so none may reach it


@pytest.fixture(scope="session", autouse=True)
def modules_cache(tmp_path_factory):
    """Where transformers keeps its copy of the Eagle model's code, for this process and for those that tests start."""
    os.environ["HF_MODULES_CACHE"] = str(tmp_path_factory.mktemp("modules"))


@pytest.fixture(scope="session")
def upstream(modules_cache):
    """The module that imports Isaac-GR00T's package, with the package there."""
    from services.gr00t import upstream

    if upstream.missing() is not None:
        pytest.skip(
            f"Isaac-GR00T's package is not here: set {upstream.SOURCE_VARIABLE}, or run in an image with its source"
        )
    upstream.prepare()
    return upstream


@pytest.fixture(scope="session")
def tiny_checkpoints(upstream, tmp_path_factory):
    """Returns a small random checkpoint of an embodiment in a volume's checkpoints/, as upstream's classes write it."""
    from services.gr00t import tiny
    from services.gr00t.checkpoint import find

    volume = tmp_path_factory.mktemp("volume")

    def make(embodiment):
        folder = volume / "checkpoints" / f"tiny-{embodiment}"
        return find(str(folder if folder.exists() else tiny.make(folder, embodiment, side=96)))

    return make


@pytest.fixture(scope="session")
def tiny_policies(tiny_checkpoints):
    """Returns the served policy of an embodiment, on the CPU, loaded once."""
    from services.gr00t.__main__ import load
    from services.gr00t.settings import Settings

    loaded = {}

    def get(embodiment):
        if embodiment not in loaded:
            found = tiny_checkpoints(embodiment)
            loaded[embodiment] = load(Settings(device="cpu"), found, found.layout())
        return loaded[embodiment]

    return get
