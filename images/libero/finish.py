"""The last step of making this environment, after the lock is installed; the image's build runs it too.

robosuite warns about missing macros and keeps a log file in the temporary folder unless `macros_private.py` lies
beside its `macros.py`. It may not import robosuite to find the place: that import is what warns.
"""

import importlib.util
import re
from pathlib import Path


def write_macros() -> Path:
    """Writes macros_private.py: robosuite's own macros with file logging off. Returns its path."""
    spec = importlib.util.find_spec("robosuite")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("robosuite is not installed in this environment; install requirements.lock first")
    folder = Path(spec.submodule_search_locations[0])
    text, changed = re.subn(
        r"(?m)^FILE_LOGGING_LEVEL\s*=.*$", "FILE_LOGGING_LEVEL = None", (folder / "macros.py").read_text()
    )
    if changed != 1:
        path = folder / "macros.py"
        raise ValueError(f"{path} sets FILE_LOGGING_LEVEL {changed} times, expected once (robosuite 1.4.0)")
    target = folder / "macros_private.py"
    target.write_text(text)
    return target


if __name__ == "__main__":
    print(write_macros())
