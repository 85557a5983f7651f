"""The last step of this environment's installation, after the lock; the image's build runs it too.

robosuite warns about missing macros and writes a log file to the temporary directory unless `macros_private.py` is next
to its `macros.py`. This step finds the directory without importing robosuite, since the import warns.

Its wheel unpacks to 589 MB, most of it meshes of robots and grippers that no LIBERO task loads: they are removed. So
are 8,000 of the 21,000 files of LIBERO-plus's wheel (in the directory `beside`) that no suite of it uses.

LIBERO's own code reads a directory from stdin, needs torch to read init states and downloads assets from a hub. Its
installed copy is edited, so upstream's example runs in a shell, a notebook and the image.
"""

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

# Below models/assets. LIBERO's robots are Pandas with Panda grippers, on the floor or on Rethink's mount. Kept are all
# MJCF files (small, some are read on import) and every texture.
UNUSED = (
    "bullet_data",  # for the IK controller, which needs pybullet
    "demonstrations",
    *(f"robots/{name}/{kind}" for name in ("baxter", "iiwa", "jaco", "kinova3", "sawyer", "ur5e")
      for kind in ("meshes", "obj_meshes")),
    *(f"grippers/meshes/{name}_gripper"
      for name in ("jaco_three_finger", "rethink", "robotiq_140", "robotiq_85", "robotiq_s")),
    "grippers/obj_meshes/rethink_gripper",
)  # fmt: skip
UNUSED_LIBEROPLUS = tuple(f"liberoplus/liberoplus/{kind}/libero_mix" for kind in ("bddl_files", "init_files"))

# Below libero/libero: what is replaced, once per file. A `.pruned_init` file is a zip around one pickled numpy array.
LIBERO_EDITS = {
    "__init__.py": (
        ('os.path.expanduser("~/.libero")', 'os.path.join(os.path.dirname(os.path.abspath(__file__)), "config")'),
        (
            """        from libero.libero.utils.download_utils import download_assets_from_huggingface
        print("Local assets not found. Downloading from HuggingFace Hub...")
        assets_path = download_assets_from_huggingface()
""",
            """        from services.libero.assets import resolve
        from vla_common.volume import Volume
        assets_path = str(resolve(None, Volume().root).path)
""",
        ),
        ("Could not download assets from HuggingFace Hub", "no LIBERO assets"),
    ),
    "benchmark/__init__.py": (
        ("import torch\n", "import pickle\nimport zipfile\n"),
        (
            "        init_states = torch.load(init_states_path, weights_only=False)\n",
            """        with zipfile.ZipFile(init_states_path) as archive:
            [name] = [name for name in archive.namelist() if name.endswith("data.pkl")]
            init_states = pickle.loads(archive.read(name))
""",
        ),
    ),
}


def package_directory(name: str) -> Path:
    """Return a package's directory without importing it. Raises ModuleNotFoundError if it is not installed."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{name} is not installed in this environment; install requirements.lock first")
    return Path(next(iter(spec.submodule_search_locations)))


def edit_libero(directory: Path) -> None:
    """Edit LIBERO's installed code and write its configuration, which it would ask for."""
    for name, edits in LIBERO_EDITS.items():
        path = directory / name
        text = path.read_text()
        for old, new in edits:
            if new in text:
                continue
            if text.count(old) != 1:
                raise ValueError(f"{path} has {old!r} {text.count(old)} times, expected once (hf-libero 0.1.4)")
            text = text.replace(old, new)
        partial = path.with_name(f"{path.name}.partial")
        partial.write_text(text)
        os.replace(partial, path)  # the old file may be a hard link into uv's cache
    config = directory / "config" / "config.yaml"
    config.parent.mkdir(exist_ok=True)
    paths = {"benchmark_root": directory, "datasets": directory.parent / "datasets", "assets": directory / "assets"}
    paths |= {"bddl_files": directory / "bddl_files", "init_states": directory / "init_files"}
    config.write_text("".join(f'{key}: "{path}"\n' for key, path in paths.items()))


def write_macros(directory: Path) -> Path:
    """Write macros_private.py: robosuite's macros with file logging off. Return its path."""
    text, changed = re.subn(
        r"(?m)^FILE_LOGGING_LEVEL\s*=.*$", "FILE_LOGGING_LEVEL = None", (directory / "macros.py").read_text()
    )
    if changed != 1:
        raise ValueError(f"{directory} sets FILE_LOGGING_LEVEL {changed} times, expected once (robosuite 1.4.0)")
    target = directory / "macros_private.py"
    target.write_text(text)
    return target


def remove_unused(below: Path, names: Iterable[str] = UNUSED) -> int:
    """Remove files that no LIBERO task loads. Return the number of freed bytes."""
    freed = 0
    for path in (below / name for name in names):
        freed += sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        shutil.rmtree(path, ignore_errors=True)
    return freed


if __name__ == "__main__":
    robosuite = package_directory("robosuite")
    write_macros(robosuite)
    edit_libero(package_directory("libero") / "libero")
    print(f"{remove_unused(robosuite / 'models' / 'assets') / 1e6:.0f} MB of unused meshes removed")
    print(f"{remove_unused(Path(sys.prefix) / 'beside', UNUSED_LIBEROPLUS) / 1e6:.0f} MB of unused task files removed")
