"""Students' homes. With a disk limit each is a file system of its own: a file of that size, mounted by root."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from hub.store import Account

JOURNAL_MB = 8  # 64 by default, times thirty


def image(account: Account) -> Path:
    """Return the file that holds the home's file system, if the class has a disk limit."""
    return account.home.with_suffix(".img")


def prepare(account: Account, disk_gb: float) -> Path:
    """Create and mount a student's home, owned by the student; return it. disk_gb: 0 for no limit.

    A home keeps the size and kind with which it was created. Raises RuntimeError if it cannot be mounted.
    """
    home, file = account.home, image(account)
    is_new = not home.exists()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if is_new and disk_gb and os.geteuid() == 0:
        with file.open("xb") as handle:
            os.fchmod(handle.fileno(), 0o600)
            handle.truncate(round(disk_gb * 1e9))
        owner = f"root_owner={account.uid}:{account.uid}"
        _run("mkfs.ext4", "-q", "-m", "0", "-J", f"size={JOURNAL_MB}", "-E", owner, str(file))
    if file.exists() and not os.path.ismount(home):
        _run("mount", "-o", "loop,nosuid,nodev", str(file), str(home))
    if os.geteuid() == 0:
        os.chown(home, account.uid, account.uid)
    home.chmod(0o700)
    return home


def unmount(account: Account) -> None:
    """Unmount a home that has a file system of its own."""
    if os.path.ismount(account.home):
        _run("umount", str(account.home))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()}; without a disk limit: --disk 0")
