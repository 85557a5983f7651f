"""Meta-World as a benchmark of `vla_evaluation`."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import numpy as np

from services.metaworld import variations
from services.metaworld.profiles import PROFILES
from services.metaworld.tasks import ACTION, CAMERAS, STATE, SUITES, Task
from vla_evaluation.benchmark import Assets

KIND = "package"  # of the assets: they come with metaworld


class Metaworld:
    """Meta-World's fifty tasks on a Sawyer arm; `vla_evaluation.benchmark.Benchmark` documents the members."""

    name = "Meta-World"
    module = __name__
    suites = tuple(SUITES)
    action = ACTION
    state = STATE
    control_hz = 80
    cameras = CAMERAS
    video_camera = "corner2"
    profiles = PROFILES
    packages = ("metaworld", "mujoco", "gymnasium", "numpy", "scipy", "pillow", "simplejpeg")
    # metaworld 2 has only the v2 tasks
    requires = MappingProxyType({"metaworld": "3", "mujoco": "3"})
    worker_gb = 0.8  # resident size
    uncounted = ("vla_common.driver",)

    def tasks(self, suite: str) -> tuple[Task, ...]:
        """Return a suite's tasks in metaworld's order."""
        return SUITES[suite]

    def init_states(self, task: Task) -> np.ndarray:
        """Return the task's fifty variations."""
        return variations.of(task.name)

    def assets(self, requested: str | None, volume: Path) -> Assets:
        """Return the package's scenes and meshes. Raises ValueError if other assets are requested."""
        directory = assets_directory()
        if requested not in (None, KIND, str(directory)):
            raise ValueError(f"--assets {requested!r}: Meta-World's scenes come with its package; remove --assets")
        return Assets(KIND, directory, _digest(directory))

    def renderer(self, render: str) -> str:
        """Return the name and version of the OpenGL driver."""
        from vla_common import driver

        return driver.ask(render)

    def worker_variables(self, number: int) -> dict[str, str]:
        """Return the variables that select a worker's GPU; workers are spread over the GPUs in turn."""
        from vla_common import gl

        return gl.spread(number)

    def make_env(self, assets: Path, work: Path, cameras: tuple[str, ...], camera_size: int, render: str):
        """Select this process's renderer and return a `MetaworldEnv`."""
        from vla_common import gl, memory

        gl.bind(gl.choose(render))
        with memory.importing():
            from services.metaworld.env import MetaworldEnv  # imports mujoco, which binds to a renderer

        return MetaworldEnv(camera_size)


def assets_directory() -> Path:
    """Return the directory of metaworld's scenes, without importing the package (which imports MuJoCo)."""
    spec = find_spec("metaworld")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError("metaworld is not installed; run `./lab env metaworld`")
    return Path(spec.submodule_search_locations[0]) / "assets"


def _digest(directory: Path) -> str:
    digest = hashlib.sha256(variations.FILE.read_bytes())
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(directory)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


BENCHMARK = Metaworld()
