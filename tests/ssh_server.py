"""SSH servers of the tests' own on this machine, each with a key of its own, for the one who runs them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ports import free_ports


def find() -> str | None:
    """Returns the SSH server's path, or None where none is installed."""
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


SSHD = find()


class Server:
    """One SSH server of the tests' own, with a key of its own, for the caller."""

    def __init__(self, directory: Path, client_key: Path) -> None:
        directory.mkdir()
        self.port, self.key = free_ports(1)[0], directory / "host"
        new_key(self.key)
        settings = {
            "ListenAddress": f"127.0.0.1:{self.port}", "HostKey": self.key, "PidFile": "none", "UsePAM": "no",
            "AuthorizedKeysFile": f"{client_key}.pub", "StrictModes": "no", "PermitRootLogin": "prohibit-password",
            "PasswordAuthentication": "no", "LogLevel": "ERROR",
        }  # fmt: skip
        config = directory / "config"
        config.write_text("".join(f'{name} "{value}"\n' for name, value in settings.items()))
        self.process = subprocess.Popen([SSHD, "-D", "-e", "-f", config], stderr=(directory / "log").open("w"))

    def known(self) -> str:
        """Returns its line of known_hosts."""
        return f"[127.0.0.1]:{self.port} {self.key.with_suffix('.pub').read_text()}"


def new_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)


def wait_open(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as there:
            if there.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"no SSH server at port {port}")


@contextmanager
def running(directory: Path, names: list[str], strange: tuple[str, ...] = ()) -> Iterator[list[Server]]:
    """Holds a server for each name. folder/home has the client's key, and known_hosts with all keys but the strange."""
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # else sshd does not start as root
    ssh = directory / "home" / ".ssh"
    ssh.mkdir(parents=True, mode=0o700)
    new_key(ssh / "id_ed25519")
    started = {name: Server(directory / name, ssh / "id_ed25519") for name in names}
    try:
        (ssh / "known_hosts").write_text("".join(one.known() for name, one in started.items() if name not in strange))
        for one in started.values():
            wait_open(one.port)
        yield list(started.values())
    finally:
        for one in started.values():
            one.process.terminate()
            one.process.wait()
