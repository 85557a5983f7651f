"""Whose this tree is. Root may work in somebody's clone, and many may use one install that only its owner changes.

What root sets up in another's clone is set up by that user: a process of the owner's makes it, with the owner's home
and on a Python that the owner can run. `lab`, the launcher, does the same for .venv.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from vlalab.host import paths

# A caller's own places, which mean nothing to the owner of the clone, or are closed to it.
PRIVATE = (
    "HOME", "USER", "LOGNAME", "MAIL", "PYENV_ROOT", "PIP_CACHE_DIR", "UV_CACHE_DIR", "UV_PYTHON_INSTALL_DIR",
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "PYTHONDONTWRITEBYTECODE",
)  # fmt: skip


@dataclass(frozen=True)
class Owner:
    """The user whose clone it is, for whom root works there."""

    uid: int
    gid: int

    def home(self) -> str:
        """Return its home, "" where it has none of its own (a container need not know the user)."""
        try:
            home = pwd.getpwuid(self.uid).pw_dir
            return home if Path(home).stat().st_uid == self.uid else ""
        except (KeyError, OSError):
            return ""

    def process(self, root: Path) -> dict[str, object]:
        """Return what subprocess needs to start a process of its own; who has no home has one in the clone."""
        inherited = {name: value for name, value in os.environ.items() if name not in PRIVATE}
        variables = {**inherited, "HOME": self.home() or str(root / ".cache")}
        return {"user": self.uid, "group": self.gid, "extra_groups": [], "env": variables}

    def owns(self, path: Path) -> bool:
        """Return whether a file or folder that is there is its own."""
        return path.lstat().st_uid == self.uid


def host_of_root(root: Path = paths.ROOT) -> Owner | None:
    """Return the owner of a clone where the caller is root and it is somebody else's; else None."""
    status = root.stat()
    return Owner(status.st_uid, status.st_gid) if os.geteuid() == 0 != status.st_uid else None


def name_of(uid: int) -> str:
    """Return a user's name, or "user 1234" where the machine has none for it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def open_to_all(path: str | Path) -> bool:
    """Return whether every user reads a file or folder: it lets others in, and so does every folder on the way."""
    real = Path(os.path.realpath(path))
    try:
        return real.stat().st_mode & 5 >= (5 if real.is_dir() else 4) and all(
            directory.stat().st_mode & 1 for directory in real.parents
        )
    except OSError:
        return False


def serves(python: str | Path, root: Path) -> bool:
    """Return whether whoever can read the clone can run that Python too: one in a home may be closed to others."""
    return open_to_all(python) or not open_to_all(root)
