"""Fixtures for everything tested inside the metaworld environment: its renderer is chosen before MuJoCo is imported."""

import copy
import pickle
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
for entry in (ROOT, *(ROOT / "shared" / name for name in ("common", "contract", "evaluation", "datasets"))):
    if str(entry) not in sys.path:
        sys.path.insert(0, str(entry))


@pytest.fixture(scope="session")
def make_env():
    """Returns a function that makes an environment with pictures of a size, drawn on the CPU. A scene that is asked for
    twice in a row, by ours and by the package, is compiled once: each gets a copy of what MuJoCo made of the file.
    """
    from services.metaworld.benchmark import BENCHMARK

    BENCHMARK.make_env(BENCHMARK.assets(None, ROOT).path, ROOT, (), 64, "cpu").close()  # chooses the renderer
    with pytest.MonkeyPatch.context() as patch:
        compile_once(patch)
        yield lambda size=64: BENCHMARK.make_env(BENCHMARK.assets(None, ROOT).path, ROOT, (), size, "cpu")


def compile_once(patch):
    import mujoco

    compiled, last = mujoco.MjModel.from_xml_path, {}

    def from_xml_path(path):
        if path not in last:
            last.clear()
            last[path] = compiled(path)
        return copy.copy(last[path])

    patch.setattr(mujoco.MjModel, "from_xml_path", from_xml_path)


@pytest.fixture(scope="session")
def env(make_env):
    """One environment that tests share, as a worker shares it over tasks and episodes."""
    made = make_env()
    yield made
    made.close()


@pytest.fixture
def stock(env):
    """Returns a function that makes metaworld's own environment of a task at a variation, as its users do, with the
    first observation. The camera is where LeRobot's adapter puts it; pictures are gymnasium's.
    """
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS
    from metaworld.types import Task

    made = []

    def make(task: str, vector, size: int = 64, camera: str = "corner2"):
        kind = ALL_V3_ENVIRONMENTS[task]
        theirs = kind(render_mode="rgb_array", camera_name=camera, width=size, height=size)
        made.append(theirs)
        theirs.model.cam_pos[2] = [0.75, 0.075, 0.7]
        told = {"env_cls": kind, "rand_vec": vector, "partially_observable": False}
        theirs.set_task(Task(task, pickle.dumps(told)))
        return theirs, theirs.reset()[0]

    yield make
    for theirs in made:
        for viewer in theirs.mujoco_renderer._viewers.values():
            viewer.make_context_current()  # textures go by numbers: in another context they are another's
            viewer.con.free()
        theirs.close()


@pytest.fixture(scope="session")
def drawn():
    """Returns a function that has gymnasium draw: upright, the first row first. Its renderer counts on being alone."""

    def image(theirs):
        for viewer in theirs.mujoco_renderer._viewers.values():
            viewer.make_context_current()
        return theirs.render()

    return image
