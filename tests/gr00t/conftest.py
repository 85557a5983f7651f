"""Fixtures for everything tested inside the gr00t environment. Only comparisons with Isaac-GR00T's code ask for it."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHARED = [str(ROOT / "shared" / name) for name in ("common", "contract", "modelkit", "datasets")]
for entry in (str(ROOT), *SHARED):
    if entry not in sys.path:
        sys.path.insert(0, entry)
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported: tests share their cores with others
# A number of its own for all runs of a test, which are compared bit for bit: else each takes the cores idle just then.
os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
os.environ["HF_HUB_OFFLINE"] = "1"  # no test may depend on a model hub, so none may reach it


@pytest.fixture(scope="session", autouse=True)
def modules_cache(tmp_path_factory):
    """Where transformers keeps its copy of the Eagle model's code, for this process and for those that tests start."""
    os.environ["HF_MODULES_CACHE"] = str(tmp_path_factory.mktemp("modules"))


@pytest.fixture(scope="session")
def upstream(modules_cache):
    """The module that imports Isaac-GR00T's package, with the package there."""
    from tests.gr00t.upstream import package

    if package.missing() is not None:
        pytest.skip("Isaac-GR00T's package is missing: see tests/gr00t/upstream/__init__.py")
    package.prepare()
    return package


@pytest.fixture(scope="session")
def tiny_checkpoints(tmp_path_factory):
    """Returns a small random checkpoint of an embodiment in a volume's checkpoints/."""
    from services.gr00t.checkpoint import tiny
    from services.gr00t.checkpoint.directory import find

    volume = tmp_path_factory.mktemp("volume")

    def make(embodiment):
        directory = volume / "checkpoints" / f"tiny-{embodiment}"
        return find(str(directory if directory.exists() else tiny.make(directory, embodiment, side=96)))

    return make


def _loaded(tiny_checkpoints, load, **settings):
    """Returns a function: embodiment -> its policy on the CPU, loaded once."""
    from services.gr00t.service.layout import layout
    from services.gr00t.service.settings import Settings

    loaded = {}

    def get(embodiment):
        if embodiment not in loaded:
            found = tiny_checkpoints(embodiment)
            one = found.embodiment()
            loaded[embodiment] = load(Settings(device="cpu", **settings), found, layout(one, found.metadata[one.tag]))
        return loaded[embodiment]

    return get


@pytest.fixture(scope="session")
def tiny_policies(tiny_checkpoints):
    """Returns the policy of an embodiment on our engine, in fp32 on the CPU."""
    from services.gr00t.service.loading import load_own_policy

    return _loaded(tiny_checkpoints, load_own_policy)


@pytest.fixture(scope="session")
def upstream_policies(upstream, tiny_checkpoints):
    """Returns the policy of an embodiment in upstream's code."""
    from tests.gr00t.upstream.policy import load_upstream_policy

    return _loaded(tiny_checkpoints, load_upstream_policy)
