"""The logs of local services. Only the caller can read them, since a service may print a token.

They are next to the state files, in logs/; those of private policies are in logs/private. If an evaluation fails, its
policy's log moves to logs/. Logs whose owner was killed are removed.
"""

from __future__ import annotations

import os
import re
import stat
import time
from pathlib import Path

from vlalab.host import state
from vlalab.host.console import LabError
from vlalab.host.processes import identify

MAX_BYTES = 10_000_000  # one older file of that size is kept
STAMP = "%Y-%m-%d %H:%M:%S"
CAUSE = re.compile(r"[\w.]*(Error|Exception|Unavailable|Refused)\b.*:|(error|fatal):|[\w.-]+: error", re.IGNORECASE)
LOGGED = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ ERROR ")  # by a service
FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK


def log_path(name: str, attached: bool = False, make: bool = False) -> Path:
    """Return the path of an instance's log."""
    return state.directory("logs", *(["private"] if attached else []), make=make) / f"{name}.log"


def open_private(path: Path) -> int:
    """Return a descriptor that appends to a file that only the caller can access; create it if missing.

    Raises OSError for a link, a special file, another user's file, or a file with a second hard link.
    """
    descriptor = os.open(path, FLAGS, 0o600)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink > 1:
            raise PermissionError(f"{path} is not a private file of yours; remove it")
        os.fchmod(descriptor, 0o600)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def older(path: Path) -> Path:
    """Return the path of a log's older part."""
    return path.with_name(path.name + ".1")


def remove_stale() -> None:
    """Remove logs and partial state files whose owner was killed; their names end with its pid."""
    top = state.directory(make=False)
    for path in [*(top / "logs" / "private").glob("*-*.log*"), *top.glob(".*.*.[0-9]*")]:
        owner = re.search(r"-(\d+)\.log(\.1)?$|\.(\d+)$", path.name)
        if owner and identify(int(owner[1] or owner[3])) is None:
            path.unlink(missing_ok=True)


def tail(path: Path, lines: int, since_s: float = 0.0) -> str:
    """Return the end of a log, from the supervisor's first line at or after a time (seconds since the epoch)."""
    try:
        text = path.read_text(errors="replace").splitlines()
    except OSError:
        return f"({path} cannot be read)"
    limit = time.strftime(f"--- {STAMP}", time.localtime(since_s))
    first = next((at for at, line in enumerate(text) if line.startswith("--- 2") and line[: len(limit)] >= limit), 0)
    return "\n".join(text[first:][-lines:])


def cause(text: str) -> str:
    """Return the line of a log with the cause of a program's end: the last error, else the last line; "" if empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("--- ")]
    errors = [LOGGED.sub("", line) for line in lines if LOGGED.match(line) or CAUSE.match(line)]
    return (errors or lines or [""])[-1]


def names() -> list[str]:
    """Return the instances that have a log."""
    return sorted({path.stem for path in state.directory("logs", make=False).glob("**/*.log")})


def require(name: str, attached: bool) -> Path:
    """Return the path of a log. Raises LabError if it does not exist."""
    path = log_path(name, attached)
    if not path.exists():
        available = ", ".join(names()) or "none"
        raise LabError(
            f"log of '{name}' not found at {path}; start the service: ./lab up {name}. Available logs: {available}"
        )
    return path


class Log:
    """A file that is rotated to NAME.1 when it is full. If it cannot be written, output is dropped and counted.

    Write errors are not raised: a service must not end because its log cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.descriptor, self.dropped = path, open_private(path), 0

    def write(self, data: bytes) -> None:
        """Append `data`, preceded by the count of bytes dropped before, if any."""
        notice = _line(f"{self.dropped} bytes of output were dropped: the disk is full") if self.dropped else b""
        try:
            size = os.fstat(self.descriptor).st_size
            if size > MAX_BYTES:
                fresh = self.path.with_name(self.path.name + ".new")
                descriptor, size = open_private(fresh), 0  # first, since it may fail
                self.path.replace(older(self.path))
                fresh.replace(self.path)
                os.close(self.descriptor)
                self.descriptor = descriptor
            if os.write(self.descriptor, notice + data) == len(notice + data):
                self.dropped = 0
                return
            os.ftruncate(self.descriptor, size)
        except OSError:
            pass
        self.dropped += len(data)

    def note(self, text: str) -> None:
        """Append a line from the supervisor."""
        self.write(_line(text))


def _line(text: str) -> bytes:
    return f"--- {time.strftime(STAMP)} {text}\n".encode()
