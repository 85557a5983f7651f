"""The host tool's state directory: running services, the settings of `up`, and the logs of local services.

It is private (0700) and outside the shared volume, which every container may write to. There is one directory per
caller, clone and machine.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import platform
import pwd
import re
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from vlalab.host import paths
from vlalab.host.console import LabError

VARIABLE = "VLALAB_STATE"
TEMPORARY = "/tmp/vla-lab-{}"  # of a user without a home, and for short paths
MAX_LENGTH = 1_000_000  # characters of a state file; a few hundred are usual


def clone_id(root: Path = paths.ROOT) -> str:
    """Return a unique name for a clone: its directory's name and a hash of its path.

    It begins with a letter or digit and contains only a-z, 0-9 and "-", as the name of a Compose project must.
    """
    stem = re.sub(r"[^a-z0-9]+", "-", root.name.lower())[:24].strip("-") or "lab"
    return f"{stem}-{hashlib.sha256(os.fsencode(root)).hexdigest()[:8]}"


def owner() -> str:
    """Return a name for this caller in this clone, for engines with several users: "anna-1a2b3c4d".

    It is valid in the name of a Compose project and, followed by a service and a pid, of a host (63 characters).
    """
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        name = ""
    user = name if re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,15}", name) else f"uid{os.geteuid()}"
    return f"{user}-{clone_id().rpartition('-')[2]}"


def directory(*names: str, make: bool = True) -> Path:
    """Return the state directory of this caller, clone and machine, or a subdirectory of it.

    It is below $VLALAB_STATE, else below vla-lab/<clone> in $XDG_STATE_HOME or ~/.local/state, else (for a caller
    without a home) in /tmp. Raises LabError if it cannot be created, or if other users could write to it.
    make: create it if missing.
    """
    machine = re.sub(r"[^\w.-]", "_", platform.node()) or "localhost"  # two machines may share a home
    if named := os.environ.get(VARIABLE):
        return _private(Path(named).expanduser().absolute(), machine, *names, make=make)
    return _private(_home(), clone_id(), machine, *names, make=make)


def short_directory(name: str, make: bool = True) -> Path:
    """Return a directory like `directory`, with a path short enough for sockets, which do not survive a reboot."""
    digest = hashlib.sha256(os.fsencode(directory(make=False))).hexdigest()[:8]
    return _private(Path(TEMPORARY.format(os.geteuid())), f"{name[:4]}-{digest}", make=make)


def _home() -> Path:
    """Return the caller's directory for the state of all clones, by the XDG rules; in /tmp for a caller without a home.

    Under sudo, HOME may be another user's, and a home may not exist: only a directory that can be created counts.
    """
    homes = [os.environ.get("XDG_STATE_HOME", ""), os.path.join(os.environ.get("HOME", ""), ".local/state")]
    with suppress(KeyError):  # a user without an entry, as in many containers
        homes.append(os.path.join(pwd.getpwuid(os.geteuid()).pw_dir, ".local/state"))
    for path in (Path(home) / "vla-lab" for home in homes if os.path.isabs(home)):
        with suppress(OSError):
            existing = next(candidate for candidate in (path, *path.parents) if candidate.exists())
            if existing.stat().st_uid == os.geteuid():
                # Try it: permissions alone are not sufficient (/proc belongs to root).
                with tempfile.TemporaryDirectory(prefix=".vla-lab-", dir=existing):
                    return path
    return Path(TEMPORARY.format(os.geteuid()))


def write(path: Path, text: str) -> None:
    """Write a private file atomically."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(partial, "w", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600)) as file:
            file.write(text)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def read(path: Path) -> str | None:
    """Return the text of a file of `write`; None if it does not exist. Raises ValueError if it is not the caller's."""
    try:
        # O_NONBLOCK: a pipe instead of the file must not block.
        with open(path, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                raise ValueError(f"{path} is not a regular file of yours")
            return file.read(MAX_LENGTH)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error


def _private(base: Path, *names: str, make: bool) -> Path:
    """Return a directory below `base`, created if `make`; only the caller may write to `base` and below.

    Raises LabError if a directory from `base` on is a link, another user's, or writable by others.
    """
    steps = list(itertools.accumulate(names, Path.joinpath, initial=base))
    try:
        if make:
            base.parent.mkdir(parents=True, exist_ok=True)
        for step in steps:
            if make:
                step.mkdir(mode=0o700, exist_ok=True)
            elif not os.path.lexists(step):
                return steps[-1]
            status = step.lstat()
            if stat.S_ISLNK(status.st_mode):
                problem = "is a link"
            elif status.st_uid != os.geteuid():
                problem = f"belongs to user {status.st_uid}, not to you, user {os.geteuid()}"
            elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                problem = "is writable by other users"
            else:
                continue
            raise LabError(
                f"{step} {problem}; the lab's state needs private directories of yours: remove it, or set {VARIABLE}"
            )
        steps[-1].chmod(0o700)  # one of an earlier version may have another mode
    except OSError as error:
        raise LabError(
            f"cannot create {steps[-1]} ({error.strerror}); set {VARIABLE} to a directory of your own"
        ) from error
    return steps[-1]
