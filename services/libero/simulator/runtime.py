"""Set up this process for LIBERO: call `configure` once, before anything imports LIBERO or robosuite.

By default, LIBERO prompts for a data-set directory on stdin and downloads assets from a model hub. robosuite writes a
log file into the temporary directory, warns about a missing settings file, and reads CUDA_VISIBLE_DEVICES as an EGL
index. MuJoCo writes MUJOCO_LOG.TXT into the current directory. This module sets, process-wide:

- LIBERO_CONFIG_PATH and its config.yaml under the work directory; LIBERO's own cache of the asset directory
- MUJOCO_GL, MUJOCO_EGL_DEVICE_ID, PYOPENGL_PLATFORM, and LP_NUM_THREADS=0 unless set (llvmpipe renders in the caller's
  thread: its own threads cost more than they gain, and workers must not compete)
- robosuite's settings module, with file logging off; MuJoCo's warning hook, sent to `logging`
"""

import importlib
import importlib.util
import logging
import os
import shutil
import sys
import tempfile
import types
from dataclasses import dataclass
from pathlib import Path

import yaml

from services.libero.simulator.suites import package_root
from vla_common import gl, memory

log = logging.getLogger("services.libero")

_active: "SimulatorConfig | None" = None


@dataclass(frozen=True)
class SimulatorConfig:
    """The configuration of this process."""

    assets: Path
    work_dir: Path
    render: str
    gl: gl.GlChoice


def configure(asset_dir, work_dir, render: str = "auto") -> SimulatorConfig:
    """Configure this process for assets in `asset_dir`, with LIBERO's files under `work_dir`.

    `render` is "cpu", "gpu", "auto" (GPU if EGL finds one) or "none" (rendering raises). A second call with the same
    arguments returns the first result. Raises ValueError for an invalid argument, RuntimeError if the process is
    configured differently, LIBERO was imported before, or no renderer is available.
    """
    global _active
    assets, work = Path(asset_dir).resolve(), Path(work_dir).resolve()
    if _active is not None:
        if (assets, render) != (_active.assets, _active.render):
            raise RuntimeError(
                f"this process is configured for {_active.assets} and render {_active.render!r}, not {assets} and "
                f"{render!r}; LIBERO uses one asset directory and one GL device per process, so start another process"
            )
        return _active
    if not (assets / "scenes").is_dir():
        raise ValueError(f"{assets} is not a LIBERO asset directory: it has no 'scenes'; try `./lab assets libero`")
    early = [name for name in ("libero.libero", "robosuite", "mujoco") if name in sys.modules]
    if early:
        raise RuntimeError(f"{', '.join(early)} was imported before runtime.configure(); import it afterwards")
    choice = gl.choose(render)
    if choice.note:
        log.warning(choice.note)
    gl.bind(choice)
    root, directory = package_root(), work / "libero"
    paths = {
        "benchmark_root": root,
        "bddl_files": root / "bddl_files",
        "init_states": root / "init_files",
        "datasets": directory / "datasets",
        "assets": assets,
    }
    directory.mkdir(parents=True, exist_ok=True)
    partial = directory / f".config.yaml.{os.getpid()}.partial"
    partial.write_text(yaml.safe_dump({key: str(path) for key, path in paths.items()}))
    partial.replace(directory / "config.yaml")  # atomic: concurrent workers share the directory
    os.environ["LIBERO_CONFIG_PATH"] = str(directory)
    spec = importlib.util.find_spec("robosuite")
    if spec is None or spec.origin is None:
        raise ImportError("robosuite is not installed; install images/libero/requirements.lock")
    robosuite = Path(spec.origin).parent
    os.environ.setdefault("LP_NUM_THREADS", "0")
    os.environ.setdefault("MPLCONFIGDIR", str(work / "matplotlib"))  # else in the user's home, or a warning
    if not os.access(robosuite / "utils", os.W_OK):  # otherwise numba caches next to the source
        os.environ.setdefault("NUMBA_CACHE_DIR", str(_numba_cache(work / "numba")))
    _import_simulator(assets, robosuite)
    _active = SimulatorConfig(assets, work, render, choice)
    return _active


def active() -> SimulatorConfig:
    """Return this process's configuration. Raises RuntimeError before `configure`."""
    if _active is None:
        raise RuntimeError("LIBERO is not configured in this process; call runtime.configure() first")
    return _active


def _numba_cache(directory: Path) -> Path:
    """Return `directory`, filled from the image's cache if new: saves 8 s on the same type of processor."""
    compiled = os.environ.get("VLALAB_NUMBA_SEED")
    if compiled and Path(compiled).is_dir() and not directory.exists():
        fresh = Path(tempfile.mkdtemp(prefix=".numba-", suffix=".partial", dir=directory.parent))
        shutil.copytree(compiled, fresh, dirs_exist_ok=True, copy_function=shutil.copyfile)
        try:
            fresh.rename(directory)
        except OSError:  # another worker was first
            shutil.rmtree(fresh)
    return directory


def _import_simulator(assets: Path, robosuite_directory: Path) -> None:
    """Import LIBERO and robosuite with robosuite's settings: no log file, no override of MUJOCO_GL.

    robosuite reads them from a file next to its source, but a shared installation must not be changed. It requires the
    EGL index in CUDA_VISIBLE_DEVICES, although the numberings differ, so that variable is hidden. LIBERO imports
    matplotlib, a fifth of a worker's start-up time, for a colour map that one environment uses: it comes later.
    """
    spec = importlib.util.spec_from_file_location("robosuite.macros", robosuite_directory / "macros.py")
    macros = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(macros)
    macros.FILE_LOGGING_LEVEL = None
    macros.MUJOCO_GPU_RENDERING = False  # otherwise MUJOCO_GL is overwritten
    sys.modules["robosuite.macros"] = macros
    sys.modules["robosuite.macros_private"] = types.ModuleType("robosuite.macros_private")  # avoids a warning
    hidden = os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    later = [] if "matplotlib" in sys.modules else [_Later("matplotlib"), _Later("matplotlib.cm")]
    try:
        if later:
            later[0].cm = later[1]
            sys.modules.update((module.__name__, module) for module in later)
        with memory.importing():
            import mujoco
            import robosuite
            from libero import libero
            from libero.libero import envs  # noqa: F401  needed by every scene
    finally:
        for module in later:
            del sys.modules[module.__name__]
        if hidden is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = hidden
    robosuite.macros = macros
    libero._assets_path_cache = str(assets)  # checked first, so that nothing is downloaded
    mujoco.set_mju_user_warning(lambda text: log.warning("mujoco: %s", text))


class _Later(types.ModuleType):
    """A module that is imported on its first attribute access."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # read by the import system itself
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)
