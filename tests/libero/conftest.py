"""Fixtures for everything tested inside the libero environment: assets, and LIBERO configured once per session."""

import os
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
for entry in (
    ROOT,
    *(ROOT / "shared" / name for name in ("common", "contract", "evaluation", "datasets", "fast_libero")),
):
    if str(entry) not in sys.path:
        sys.path.insert(0, str(entry))

# Where files run side by side, nothing is to wait for one of these alone at the end.
LONGEST = ("test_faults", "test_evaluate", "test_recording")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begins with the files that take longest."""
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


@pytest.fixture
def stack():
    """What is entered here ends with the test."""
    with ExitStack() as entered:
        yield entered


@pytest.fixture(scope="session")
def libero_assets() -> Path:
    """The asset folder under test: $VLALAB_LIBERO_ASSETS, else official files on the volume, else the kit."""
    from services.libero import assets
    from vla_common.volume import Volume

    return Path(assets.resolve(None, Volume().root).path)


@pytest.fixture(scope="session")
def official_assets() -> Path:
    """LIBERO's official files: those of this machine, else downloaded once into the caller's cache with LIBERO-PRO's
    objects (360 MB).
    """
    from services.libero.assets import official, pro
    from vla_common.volume import Volume

    for directory in (os.environ.get("VLALAB_LIBERO_ASSETS"), official.directory(Volume().root)):
        if directory and not official.problems(Path(directory)):
            return Path(directory)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vla-lab"
    try:
        official.download(cache)
        return pro.download(cache)
    except OSError as error:
        pytest.skip(f"LIBERO's official files could not be had: {error}")


@pytest.fixture(scope="session")
def libero_runtime(libero_assets, tmp_path_factory):
    """This process, configured for LIBERO with CPU rendering."""
    from services.libero.simulator import runtime

    return runtime.configure(libero_assets, tmp_path_factory.mktemp("libero"), render="cpu")


@pytest.fixture(scope="session")
def libero_env(libero_runtime):
    """One `LiberoEnv` that tests share, as a worker shares it over tasks and episodes."""
    from services.libero.simulator.env import LiberoEnv

    env = LiberoEnv(libero_runtime.assets)
    yield env
    env.close()


@pytest.fixture(scope="session")
def stock_env(libero_runtime):
    """Return LIBERO's own `OffScreenRenderEnv` for a task; the caller closes it."""

    def make(task, cameras=("agentview", "robot0_eye_in_hand")):
        from libero.libero.envs import OffScreenRenderEnv

        return OffScreenRenderEnv(
            bddl_file_name=str(task.bddl_path),
            camera_names=list(cameras),
            camera_heights=256,
            camera_widths=256,
        )

    return make
