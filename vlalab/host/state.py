"""The folder in which the host tool keeps its own notes: what runs, what `up` was told, and the logs of local services.

It is the caller's alone (0700) and lies outside the shared volume, which every container may write to. One caller, one
clone and one machine have one folder.
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
STEM_LENGTH = 24
MAX_LENGTH = 1_000_000  # characters of a state file: they have some hundred


def clone_id(root: Path = paths.ROOT) -> str:
    """Return a name for a clone, made from its path: what a person recognises, and what makes it the only one.

    It begins with a letter or digit and holds a-z, 0-9 and "-" only, as the name of a Compose project has to.
    """
    stem = re.sub(r"[^a-z0-9]+", "-", root.name.lower())[:STEM_LENGTH].strip("-") or "lab"
    return f"{stem}-{hashlib.sha256(os.fsencode(root)).hexdigest()[:8]}"


def owner() -> str:
    """Return a name for this caller in this clone, for engines that several share: "anna-1a2b3c4d".

    It may be part of the name of a Compose project, and with a service and a pid behind it of a host (63 characters).
    """
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        name = ""
    user = name if re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,15}", name) else f"uid{os.geteuid()}"
    return f"{user}-{clone_id().rpartition('-')[2]}"


def directory(*names: str, make: bool = True) -> Path:
    """Return the folder of this caller, clone and machine, or one of those names below it; made if missing.

    It lies under $VLALAB_STATE, else under vla-lab/<clone> in $XDG_STATE_HOME or ~/.local/state, else (a caller without
    a home) in /tmp. Raises LabError where it cannot be made, or where somebody else might write to it.
    make: whether a missing one is made; else it is merely named.
    """
    machine = re.sub(r"[^\w.-]", "_", platform.node()) or "localhost"  # two machines may share a home
    if named := os.environ.get(VARIABLE):
        return _private(Path(named).expanduser().absolute(), machine, *names, make=make)
    return _private(_home(), clone_id(), machine, *names, make=make)


def short_directory(name: str, make: bool = True) -> Path:
    """Return a folder as `folder` does, with a path short enough for sockets below it, which end with the machine."""
    digest = hashlib.sha256(os.fsencode(directory(make=False))).hexdigest()[:8]
    return _private(_temporary(), f"{name[:4]}-{digest}", make=make)


def _home() -> Path:
    """Return the caller's directory for the state of all clones, by the XDG rules; in /tmp for a caller without a home.

    Under sudo HOME may be another user's, and a home may not exist: only a directory that can be made is taken.
    """
    homes = [os.environ.get("XDG_STATE_HOME", ""), os.path.join(os.environ.get("HOME", ""), ".local/state")]
    with suppress(KeyError):  # a user without an entry, as in many containers
        homes.append(os.path.join(pwd.getpwuid(os.geteuid()).pw_dir, ".local/state"))
    for path in (Path(home) / "vla-lab" for home in homes if os.path.isabs(home)):
        with suppress(OSError):
            existing = next(candidate for candidate in (path, *path.parents) if candidate.exists())
            if existing.stat().st_uid == os.geteuid():
                # By making one: rights alone do not tell (/proc is root's).
                with tempfile.TemporaryDirectory(prefix=".vla-lab-", dir=existing):
                    return path
    return _temporary()


def _temporary() -> Path:
    """Return the caller's directory where no other can be had, or where a path has to be short."""
    return Path(f"/tmp/vla-lab-{os.geteuid()}")


def write(path: Path, text: str) -> None:
    """Write a file that only the caller reads, whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(partial, "w", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600)) as file:
            file.write(text)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def read(path: Path) -> str | None:
    """Return what `write` wrote, None where there is nothing. Raise ValueError for what is not the caller's file."""
    try:
        # O_NONBLOCK: a pipe in its place must not stop us.
        with open(path, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                raise ValueError(f"{path} is no file of yours")
            return file.read(MAX_LENGTH)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error


def _private(base: Path, *names: str, make: bool) -> Path:
    """Return a directory below `base`, made if `make`; from `base` on only the caller may write.

    Raises LabError where one on the way is a link, not a directory, another user's, or open to others for writing.
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
                problem = "may be written to by others"
            else:
                continue
            raise LabError(
                f"{step} {problem}; the lab's state must be in directories of yours alone: remove it, or set {VARIABLE}"
            )
        steps[-1].chmod(0o700)  # one of an earlier version may have another mode
    except OSError as error:
        raise LabError(f"cannot make {steps[-1]} ({error.strerror}); set {VARIABLE} to a folder of your own") from error
    return steps[-1]
