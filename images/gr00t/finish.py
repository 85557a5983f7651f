"""The last step of making this environment, after the lock is installed; the image's build runs it too.

Isaac-GR00T takes its rotations from pytorch3d, whose only wheel on the index holds 200 MB of compiled code for another
Python. The rotations are plain Python; what this interpreter cannot load is removed.
"""

import importlib.machinery
import importlib.util
from pathlib import Path

PACKAGE = "pytorch3d"


def unloadable(folder: Path) -> list[Path]:
    """Returns the compiled modules in `folder` whose names say that another interpreter than this one loads them."""
    ours = importlib.machinery.EXTENSION_SUFFIXES  # ".cpython-310-x86_64-linux-gnu.so", ".abi3.so", ".so"
    return [path for path in sorted(folder.glob("*.so")) if "." + path.name.split(".", 1)[1] not in ours]


def remove_unloadable() -> list[Path]:
    """Removes them from the package. Returns their paths."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{PACKAGE} is not installed in this environment; install requirements.lock first")
    found = unloadable(Path(spec.submodule_search_locations[0]))
    for path in found:
        path.unlink()
    return found


if __name__ == "__main__":
    for removed in remove_unloadable():
        print(f"removed {removed}")
