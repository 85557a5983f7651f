"""Import LIBERO and robosuite without their side effects: no prompt, no log file, no warning, no late import.

LIBERO asks on stdin for a data-set directory unless its `config.yaml` exists. robosuite writes a log file into the
temporary directory, warns about a missing settings file and sets MUJOCO_GL. MuJoCo writes MUJOCO_LOG.TXT into the
current directory.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import logging
import os
import sys
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger("fast_libero")

OTHER_LIGHT = (3, 3, 3)  # the first mujoco that renders LIBERO differently


def package_root() -> Path:
    """Return the directory of LIBERO's inner package (`libero/libero`). Raises ImportError when it is not installed."""
    spec = importlib.util.find_spec("libero")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("hf-libero is not installed; run `pip install --no-deps hf-libero==0.1.4`")
    root = Path(next(iter(spec.submodule_search_locations))) / "libero"
    if not (root / "bddl_files").is_dir():
        raise ImportError(f"{root} has no bddl_files: LIBERO's package is empty; install the wheel of hf-libero")
    return root


def write_config(directory: Path, assets: Path) -> None:
    """Write LIBERO's config.yaml into `directory` and point LIBERO_CONFIG_PATH of this process at it."""
    root = package_root()
    paths = {
        "benchmark_root": root,
        "bddl_files": root / "bddl_files",
        "init_states": root / "init_files",
        "datasets": directory / "datasets",
        "assets": assets,
    }
    directory.mkdir(parents=True, exist_ok=True)
    partial = directory / f".config.yaml.{os.getpid()}.partial"
    partial.write_text(json.dumps({key: str(path) for key, path in paths.items()}))
    partial.replace(directory / "config.yaml")  # atomic: concurrent processes share the directory; JSON is YAML
    os.environ["LIBERO_CONFIG_PATH"] = str(directory)


def robosuite_directory() -> Path:
    """Return the directory of robosuite's package. Raises ImportError when it is not installed."""
    spec = importlib.util.find_spec("robosuite")
    if spec is None or spec.origin is None:
        raise ImportError("robosuite is not installed; run `pip install --no-deps robosuite==1.4.0`")
    return Path(spec.origin).parent


def prepare() -> None:
    """Import LIBERO without its side effects, unless this process has imported it.

    A LIBERO configuration of the user stays in use ($LIBERO_CONFIG_PATH, else ~/.libero); without one, one in the
    user's cache. FAST_LIBERO_ASSETS is a directory of LIBERO's models; without it hf-libero finds or downloads them.
    Unless set, MUJOCO_GL becomes egl as in robosuite, and LP_NUM_THREADS 0: a CPU renders in the calling thread.
    Raises ValueError if FAST_LIBERO_ASSETS is no such directory.
    """
    if "libero.libero" in sys.modules:
        return
    assets = Path(os.environ["FAST_LIBERO_ASSETS"]) if os.environ.get("FAST_LIBERO_ASSETS") else None
    if assets is not None and not (assets / "scenes").is_dir():
        raise ValueError(f"FAST_LIBERO_ASSETS={assets} is not a directory of LIBERO's models: it has no 'scenes'")
    configured = Path(os.environ.get("LIBERO_CONFIG_PATH") or "~/.libero").expanduser()
    if not (configured / "config.yaml").is_file():
        root = package_root()
        caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fast_libero"
        write_config(caches / hashlib.sha256(str(root).encode()).hexdigest()[:16], assets or root / "assets")
    os.environ.setdefault("MUJOCO_GL", "egl")
    os.environ.setdefault("LP_NUM_THREADS", "0")
    import_simulator(assets)
    _warn_of_other_physics()


def _warn_of_other_physics() -> None:
    import mujoco

    if tuple(map(int, mujoco.__version__.split(".")[:3])) >= OTHER_LIGHT:
        warnings.warn(
            f"mujoco {mujoco.__version__} renders LIBERO's floors darker than 3.2.3, which costs OpenVLA about 20 "
            "points on libero_object, and its physics differ; published results are of 3.2.3 and older",
            stacklevel=2,
        )


def check_assets() -> None:
    """Raise RuntimeError, with what to do, if LIBERO has no models; hf-libero downloads them where it can."""
    from libero.libero import get_assets_path

    found = Path(get_assets_path())
    if not (found / "scenes").is_dir():
        raise RuntimeError(
            f"LIBERO's models are missing: {found} has no 'scenes'. Set FAST_LIBERO_ASSETS to a directory that has, or "
            "let hf-libero download them: `pip install huggingface_hub`"
        )


def import_simulator(assets: Path | None) -> None:
    """Import LIBERO and robosuite with robosuite's settings: no log file, no override of MUJOCO_GL.

    robosuite reads them from a file next to its source, but a shared installation must not be changed. It requires the
    EGL index in CUDA_VISIBLE_DEVICES, although the numberings differ, so that variable is hidden. LIBERO imports
    matplotlib, a fifth of a process's start-up time, for a colour map that one environment uses: it comes later.
    `assets` is the directory that LIBERO takes its models from; None leaves LIBERO to find or download them.
    """
    spec = importlib.util.spec_from_file_location("robosuite.macros", robosuite_directory() / "macros.py")
    assert spec is not None and spec.loader is not None
    macros = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(macros)
    macros.FILE_LOGGING_LEVEL = None  # type: ignore[attr-defined]
    macros.MUJOCO_GPU_RENDERING = False  # type: ignore[attr-defined]  # otherwise MUJOCO_GL is overwritten
    sys.modules["robosuite.macros"] = macros
    sys.modules["robosuite.macros_private"] = types.ModuleType("robosuite.macros_private")  # avoids a warning
    hidden = os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    try:
        with later("matplotlib", "matplotlib.cm"):
            import mujoco
            import robosuite
            from libero import libero
            from libero.libero import envs  # noqa: F401  needed by every scene
    finally:
        if hidden is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = hidden
    robosuite.macros = macros
    if assets is not None:
        libero._assets_path_cache = str(assets)  # checked first, so that nothing is downloaded
    mujoco.set_mju_user_warning(lambda text: log.warning("mujoco: %s", text))


@contextmanager
def later(*names: str) -> Iterator[None]:
    """Let imports of these modules, parents first, succeed at once; each is imported when it is first used."""
    missing = [] if names[0] in sys.modules else [_Later(name) for name in names]
    for module in missing:
        parent, _, child = module.__name__.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
        sys.modules[module.__name__] = module
    try:
        yield
    finally:
        for module in missing:
            del sys.modules[module.__name__]


class _Later(types.ModuleType):
    """A module that is imported on its first attribute access."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # read by the import system itself
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)
