"""The owner of the clone. Root may work in another user's clone, and users may share one that only its owner changes.

For root, the lab installs environments as the clone's owner: with the owner's home and a Python that the owner can run.
`lab`, the launcher, does the same for .venv.
"""

from __future__ import annotations

import os
import pwd
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vlalab.host import paths

# Variables with the caller's own paths, which the clone's owner may not be able to read.
PRIVATE = (
    "HOME", "USER", "LOGNAME", "MAIL", "PYENV_ROOT", "PIP_CACHE_DIR", "UV_CACHE_DIR", "UV_PYTHON_INSTALL_DIR",
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "PYTHONDONTWRITEBYTECODE",
)  # fmt: skip


@dataclass(frozen=True)
class Owner:
    """The owner of a clone that root works in."""

    uid: int
    gid: int

    def process(self, root: Path) -> dict[str, object]:
        """Return subprocess arguments to run as the owner; an owner without a home gets one in the clone."""
        home = str(root / ".cache")
        with suppress(KeyError, OSError):  # a container need not know the user
            entry = Path(pwd.getpwuid(self.uid).pw_dir)
            home = str(entry) if entry.stat().st_uid == self.uid else home
        inherited = {name: value for name, value in os.environ.items() if name not in PRIVATE}
        return {"user": self.uid, "group": self.gid, "extra_groups": [], "env": {**inherited, "HOME": home}}


def owner_if_root(root: Path = paths.ROOT) -> Owner | None:
    """Return the owner of a clone if the caller is root and the owner is not; else None."""
    status = root.stat()
    return Owner(status.st_uid, status.st_gid) if os.geteuid() == 0 != status.st_uid else None


def user_name(uid: int) -> str:
    """Return a user's name, or "user 1234" if the uid has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def is_world_readable(path: str | Path) -> bool:
    """Return whether every user can read a file or directory, including all its parent directories."""
    real = Path(os.path.realpath(path))
    try:
        is_readable = real.stat().st_mode & 5 >= (5 if real.is_dir() else 4)
        return is_readable and all(directory.stat().st_mode & 1 for directory in real.parents)
    except OSError:
        return False


def readers_can_run(python: str | Path, root: Path) -> bool:
    """Return whether every reader of the clone can run that Python; one in a home may not be readable."""
    return is_world_readable(python) or not is_world_readable(root)
