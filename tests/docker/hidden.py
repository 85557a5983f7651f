"""Build secrets with a mark in them, so that whatever of them stays in an image can be found."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
ASK_PIP = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
# Large files are libraries and weights of packages whose hashes were checked.
SEARCH = "find / -xdev -type f -size -2M -print0 | xargs -0 -r grep -lsF -e {marks} || true"


@dataclass(frozen=True)
class Secrets:
    """The files that builds get as secrets, and the marks that they hold."""

    ca: Path
    index: Path
    marks: tuple[str, ...]

    def flags(self) -> list[str]:
        """Returns the flags of `./lab build`."""
        return ["--ca-bundle", str(self.ca), "--index", str(self.index)]

    def search(self) -> list[str]:
        """Returns a command that prints the files of a container which hold a mark."""
        return ["sh", "-c", SEARCH.format(marks=" -e ".join(self.marks))]


def make(directory: Path) -> Secrets:
    """Makes this machine's CA bundle and its package index into secrets, in `folder`."""
    mark = f"vlalab-{secrets.token_hex(8)}"
    (directory / "ca.pem").write_text(f"# {mark}\n{BUNDLE.read_text() if BUNDLE.exists() else ''}")
    address, password = with_password(index_address(), mark)
    (directory / "index").write_text(address)
    return Secrets(directory / "ca.pem", directory / "index", (mark, password))


def index_address() -> str:
    """Returns the address of the package index that this machine uses, as variables or pip's settings name it."""
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        if os.environ.get(name):
            return os.environ[name]
    for command in (["-m", "pip", "config", "get", "global.index-url"], ["-c", ASK_PIP]):
        asked = subprocess.run([sys.executable, *command], capture_output=True, text=True)
        if asked.returncode == 0:
            return asked.stdout.strip()
    raise RuntimeError("pip names no package index")


def with_password(address: str, password: str) -> tuple[str, str]:
    """Returns the address with a password in it, unless it has one, and the password. An open index ignores it."""
    parts = urlsplit(address)
    if parts.password:
        return address, parts.password
    return urlunsplit(parts._replace(netloc=f"lab:{password}@{parts.netloc}")), password
