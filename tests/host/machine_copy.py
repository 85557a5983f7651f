"""A copy of this machine to change as root would: an overlay over its disk, in memory, which nobody else sees.

Programs run in it by chroot; it ends with the block, or with this process, and nothing of it is left.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MAKE = """
mount -t tmpfs tmpfs "$1" && cd "$1" && mkdir upper work root &&
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root &&
for one in dev proc sys; do mount --rbind /$one root/$one || exit; done &&
mount -t tmpfs tmpfs root/run && rm -rf root/etc/apt/sources.list root/etc/apt/sources.list.d/* &&
rm -rf root/snap/bin/docker root/nonexistent &&
echo ready && exec cat
"""


@dataclass(frozen=True)
class Copy:
    """The copy: the process that holds it, and its root within that process's mounts."""

    pid: int
    root: Path

    def run(self, *command: object, **more: object) -> subprocess.CompletedProcess[str]:
        """Runs a command in it."""
        inside = ["nsenter", f"--mount=/proc/{self.pid}/ns/mnt", "chroot", self.root]
        words = [str(word) for word in (*inside, *command)]
        return subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, **more)

    def read(self, path: str) -> str:
        """Returns the text of one of its files."""
        return self.run("cat", path, check=True).stdout


def lack() -> str | None:
    """Returns why there can be no copy here, or None."""
    if os.geteuid() != 0:
        return "a copy of the machine takes root"
    missing = [name for name in ("unshare", "nsenter", "apt-get", "systemctl", "gpg") if not shutil.which(name)]
    if missing:
        return f"no {', '.join(missing)} here"
    if subprocess.run(["/usr/bin/python3", "-c", "import apt"], capture_output=True).returncode:
        return "no python3-apt here"
    engines = subprocess.run(["dpkg-query", "-W", "docker-ce", "docker.io"], capture_output=True, text=True).stdout
    return "an engine is installed here, which the playbook leaves as it is" if engines else None


@contextmanager
def copied(directory: Path) -> Iterator[Copy | None]:
    """Holds a copy of this machine; None where root may not mount an overlay, as in most containers."""
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", MAKE, "sh", str(directory)]
    holder = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield Copy(holder.pid, directory / "root") if holder.stdout.readline() == "ready\n" else None
    finally:
        holder.stdin.close()
        holder.wait()
