"""A student's limits: a control group (of either version) for memory and processor, a mounted file for the disk."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

ROOT = Path("/sys/fs/cgroup")
NAME = "vla-class"
IS_UNIFIED = (ROOT / "cgroup.controllers").exists()  # version 2
JOURNAL_MB = 8  # of a home's file system; 64 by default, times thirty


def groups(name: str) -> list[Path]:
    """Return the directories of a student's control group: one in version 2, one per controller in version 1."""
    roots = [ROOT] if IS_UNIFIED else [ROOT / "memory", ROOT / "cpu"]
    return [root / NAME / name for root in roots if root.is_dir()]


def join(name: str, memory_gb: float, cpus: float) -> None:
    """Move this process into a student's control group, with its limits. Raises OSError if there are no groups."""
    values: dict[str, str] = {}  # by file; a version has its own, and a kernel may lack those of swap
    if memory_gb:
        size = str(round(memory_gb * 1e9))
        values |= {"memory.limit_in_bytes": size, "memory.memsw.limit_in_bytes": size}
        values |= {"memory.max": size, "memory.swap.max": "0"}
    if cpus:
        values |= {"cpu.cfs_quota_us": f"{cpus * 100_000:.0f}", "cpu.max": f"{cpus * 100_000:.0f} 100000"}
    if values and not groups(name):
        raise OSError(f"{ROOT} has no control groups for memory; start the class with --memory 0 --cpus 0")
    for directory in groups(name):
        directory.parent.mkdir(exist_ok=True)
        for parent in (ROOT, directory.parent) if IS_UNIFIED else ():
            (parent / "cgroup.subtree_control").write_text("+memory +cpu")
        directory.mkdir(exist_ok=True)
        for file, value in values.items():
            if (directory / file).exists():
                (directory / file).write_text(value)
        (directory / "cgroup.procs").write_text(str(os.getpid()))


def kill(name: str) -> None:
    """End every process of a student, also one that detached itself, and remove the group."""
    for directory in groups(name):
        deadline = time.monotonic() + 5
        while directory.is_dir() and time.monotonic() < deadline:
            for pid in (directory / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            try:
                directory.rmdir()
            except OSError:  # a killed process is still there
                time.sleep(0.02)


def memory_bytes(name: str) -> int:
    """Return the memory that a student's processes use, 0 if none runs."""
    files = [directory / file for directory in groups(name) for file in ("memory.current", "memory.usage_in_bytes")]
    return sum(int(file.read_text()) for file in files if file.exists())


def uid_of(pid: int) -> int | None:
    """Return the owner of a process, None if it has ended."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def image(account: Any) -> Path:
    """Return the file that holds the file system of a home with a disk limit. account: `hub.store.Account`."""
    return Path(account.home).with_suffix(".img")


def prepare_home(account: Any, disk_gb: float) -> Path:
    """Create and mount a student's home and return it. disk_gb: of a new one; 0: no limit. Raises RuntimeError."""
    home, file = Path(account.home), image(account)
    if not home.exists() and disk_gb:
        file.parent.mkdir(mode=0o700, exist_ok=True)
        file.touch(mode=0o600)
        os.truncate(file, round(disk_gb * 1e9))
        _run("mkfs.ext4", "-q", "-m", "0", "-J", f"size={JOURNAL_MB}", str(file))
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if file.exists() and not os.path.ismount(home):
        _run("mount", "-o", "loop,nosuid,nodev", str(file), str(home))
    os.chown(home, account.uid, account.uid)
    home.chmod(0o700)
    return home


def remove_home(account: Any) -> None:
    """Remove a student's home, with all work."""
    if os.path.ismount(account.home):
        _run("umount", str(account.home))
    image(account).unlink(missing_ok=True)
    if account.home.exists():  # not of a student who never logged in
        shutil.rmtree(account.home)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()}; without a disk limit: --disk 0")
