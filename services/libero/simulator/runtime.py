"""Set up this process for LIBERO: call `configure` once, before anything imports LIBERO or robosuite.

By default, LIBERO prompts for a data-set directory on stdin and downloads assets from a model hub. robosuite writes a
log file into the temporary directory, warns about a missing settings file, and reads CUDA_VISIBLE_DEVICES as an EGL
index. MuJoCo writes MUJOCO_LOG.TXT into the current directory. This module sets, process-wide:

- LIBERO_CONFIG_PATH and its config.yaml under the work directory; LIBERO's own cache of the asset directory
- MUJOCO_GL, MUJOCO_EGL_DEVICE_ID, PYOPENGL_PLATFORM, and LP_NUM_THREADS=0 unless set (llvmpipe renders in the caller's
  thread: its own threads cost more than they gain, and workers must not compete)
- robosuite's settings module, with file logging off; MuJoCo's warning hook, sent to `logging`
"""

import logging
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fast_libero import startup
from vla_common import gl, memory

log = logging.getLogger("services.libero")

_SOFTWARE_RENDERERS = ("llvmpipe", "softpipe", "swrast", "swiftshader")
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
    startup.write_config(work / "libero", assets)
    robosuite = startup.robosuite_directory()
    os.environ.setdefault("LP_NUM_THREADS", "0")
    os.environ.setdefault("MPLCONFIGDIR", str(work / "matplotlib"))  # else in the user's home, or a warning
    if not os.access(robosuite / "utils", os.W_OK):  # otherwise numba caches next to the source
        os.environ.setdefault("NUMBA_CACHE_DIR", str(_numba_cache(work / "numba")))
    with memory.importing():
        startup.import_simulator(assets)
    _active = SimulatorConfig(assets, work, render, choice)
    return _active


def active() -> SimulatorConfig:
    """Return this process's configuration. Raises RuntimeError before `configure`."""
    if _active is None:
        raise RuntimeError("LIBERO is not configured in this process; call runtime.configure() first")
    return _active


def require_rendering() -> None:
    """Raise RuntimeError if this process cannot render."""
    if active().gl.backend == "disable":
        raise RuntimeError("this process was configured with render 'none'; use cpu, gpu or auto to get images")


def warn_if_slow(driver: str) -> None:
    """Warn if `driver` renders on the CPU although there is a GPU: runs then take hours instead of minutes."""
    wants_gpu = active().render == "gpu" or (active().render == "auto" and gl.has_nvidia_gpu())
    if wants_gpu and any(word in driver.lower() for word in _SOFTWARE_RENDERERS):
        log.warning("frames are rendered in software (%s) although this machine has a GPU; %s", driver, gl._GPU_HINT)


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
