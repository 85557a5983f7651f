"""What a machine says of itself, as texts: files and the output of programs. Tests have recorded machines."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

RUN_S = 5.0  # how long a program may take
FETCH_S = 3.0


@dataclass(frozen=True)
class Said:
    """What a program printed, and its exit code."""

    code: int
    out: str = ""
    err: str = ""

    def json(self) -> dict:
        """Returns the object that it printed, an empty one where it printed something else."""
        try:
            found = json.loads(self.out)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class Disk:
    """A file system: bytes, and the share of its inodes that is free (1.0 where it counts none)."""

    total: int
    free: int
    free_inodes: float = 1.0


@dataclass(frozen=True)
class Answer:
    """A web server's answer, or why there is none; `date`: its clock, in seconds since the epoch."""

    status: int = 0
    error: str = ""
    date: float | None = None


class Machine(Protocol):
    """Where checks have their texts from."""

    variables: Mapping[str, str]

    def which(self, program: str) -> str | None:
        """Returns the path of a program, links resolved, None where there is none."""

    def run(self, *words: str, limit_s: float = RUN_S) -> Said | None:
        """Returns what a program said, None where there is none. Raises TimeoutError after `limit_s`."""

    def read(self, path: str) -> str | None:
        """Returns a file's text, None where it is not there or closed to the caller."""

    def names(self, folder: str) -> list[str]:
        """Returns what lies in a folder, sorted; nothing where it is not there."""

    def disk(self, path: str) -> Disk | None:
        """Returns the file system that a path lies, or would lie, on."""

    def gpus(self) -> dict[str, Any]:
        """Returns what NVIDIA's library says: {"error": NAME} or {"driver": …, "devices": […]} (doctor/nvml.py)."""

    def fetch(self, url: str) -> Answer:
        """Returns the answer to a HEAD request, through the proxy that the variables name."""

    def connects(self, host: str, port: int) -> bool:
        """Returns whether something listens there."""

    def now(self) -> float:
        """Returns the time, in seconds since the epoch."""


class Live:
    """This machine. What was asked once is not asked again."""

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        self.variables = dict(os.environ if variables is None else variables)
        self._guard = threading.Lock()
        self._known: dict[tuple, Any] = {}
        self._locks: dict[tuple, threading.Lock] = {}

    def _once(self, ask: Any, *words: Any) -> Any:
        key = (ask.__name__, *words)
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._known:
                self._known[key] = ask(*words)
            return self._known[key]

    def which(self, program: str) -> str | None:
        found = shutil.which(program, path=self.variables.get("PATH", os.defpath))
        return os.path.realpath(found) if found else None

    def run(self, *words: str, limit_s: float = RUN_S) -> Said | None:
        return self._once(self._run, limit_s, *words)

    def _run(self, limit_s: float, *words: str) -> Said | None:
        found = shutil.which(words[0], path=self.variables.get("PATH", os.defpath))
        if found is None:
            return None
        try:
            done = subprocess.run(
                [found, *words[1:]], capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL,
                timeout=limit_s, env=self.variables,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{words[0]} did not answer within {limit_s:g} s") from None
        except OSError as error:
            return Said(126, err=f"{found} cannot be run: {error.strerror}")
        return Said(done.returncode, done.stdout, done.stderr)

    def read(self, path: str) -> str | None:
        try:
            return Path(path).read_text(errors="replace")
        except OSError:
            return None

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(folder))
        except OSError:
            return []

    def disk(self, path: str) -> Disk | None:
        place = Path(path).absolute()
        try:
            there = next(one for one in (place, *place.parents) if one.exists())
            found = os.statvfs(there)
        except (OSError, StopIteration):
            return None
        share = found.f_favail / found.f_files if found.f_files else 1.0
        return Disk(found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail, share)

    def gpus(self) -> dict[str, Any]:
        return self._once(self._gpus)

    def _gpus(self) -> dict[str, Any]:
        # A process of its own: a driver that hangs or crashes takes nothing along.
        said = self._run(RUN_S, sys.executable, "-I", "-m", "vlalab.doctor.nvml")
        return (said.json() if said else {}) or {"error": "NoAnswer"}

    def fetch(self, url: str) -> Answer:
        return self._once(self._fetch, url)

    def _fetch(self, url: str) -> Answer:
        import ssl
        import urllib.error
        import urllib.request
        from email.utils import parsedate_to_datetime

        try:
            context = ssl.create_default_context(cafile=self.variables.get("SSL_CERT_FILE") or None)
            proxies = urllib.request.ProxyHandler(_proxies(self.variables, urlsplit(url).hostname or ""))
            opener = urllib.request.build_opener(proxies, urllib.request.HTTPSHandler(context=context))
            with opener.open(urllib.request.Request(url, method="HEAD"), timeout=FETCH_S) as answer:
                status, headers = answer.status, answer.headers
        except urllib.error.HTTPError as error:  # it answers, if only to refuse
            status, headers = error.code, error.headers
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            return Answer(error=str(getattr(reason, "strerror", None) or reason))
        date = headers.get("Date")
        return Answer(status, date=parsedate_to_datetime(date).timestamp() if date else None)

    def connects(self, host: str, port: int) -> bool:
        import socket

        try:
            socket.create_connection((host, port), timeout=FETCH_S / 2).close()
        except (OSError, UnicodeError):
            return False
        return True

    def now(self) -> float:
        return time.time()


def _proxies(variables: Mapping[str, str], host: str) -> dict[str, str]:
    """Returns urllib's proxies for a host, by the variables that pip, uv and curl read."""
    named = {
        kind: variables.get(f"{kind}_proxy") or variables.get(f"{kind.upper()}_PROXY") for kind in ("http", "https")
    }
    beside = (variables.get("no_proxy") or variables.get("NO_PROXY") or "").replace(" ", "").split(",")
    if "*" in beside or any(one and host.endswith(one.lstrip(".")) for one in beside):
        return {}
    return {kind: url for kind, url in named.items() if url}
