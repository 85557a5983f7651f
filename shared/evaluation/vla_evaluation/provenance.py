"""What a result depends on besides its configuration: versions, code, commit, machine."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

from vla_common.versions import LOCK, ROOT
from vla_evaluation import imports
from vla_evaluation.benchmark import Benchmark

SITE = Path(sysconfig.get_path("purelib"))
WORKER = "vla_evaluation.workers.worker"  # what an episode does and what the policy is shown


def code_digest(benchmark: Benchmark, worker: str = WORKER) -> str:
    """Returns 16 hex digits over the source of every module that a worker is made of: a change in one is drift."""
    return imports.code_digest((worker, benchmark.module), benchmark.uncounted)


def off_lock(lock: Path = LOCK) -> list[str]:
    """Returns the installed packages that have another version than the lock pins, as in "scipy 1.9.0 (lock: 1.8.1)".

    A lock pins some packages twice, for different Pythons; either will do here.
    """
    pins: dict[str, list[str]] = {}
    for name, pinned in re.findall(
        r"^([\w.-]+)==([^\s;\\]+)", lock.read_text() if lock.is_file() else "", re.MULTILINE
    ):
        pins.setdefault(_normal(name), []).append(pinned)
    named = (path.name.removesuffix(".dist-info").rpartition("-") for path in SITE.glob("*.dist-info"))
    there = {_normal(name): found for name, _, found in named}  # from the folders' names: reading each takes 0.1 s
    wrong = (name for name in sorted(pins.keys() & there.keys()) if there[name] not in pins[name])
    return [f"{name} {there[name]} (lock: {' or '.join(pins[name])})" for name in wrong]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def git_commit() -> str | None:
    """Returns the commit of the source tree, with "+" where it has local changes; None outside a checkout."""
    root = ROOT
    if not (root / ".git").exists() or shutil.which("git") is None:
        return os.environ.get("VLALAB_COMMIT") or None

    def git(*arguments: str) -> str | None:
        command = ["git", "-c", f"safe.directory={root}", "-C", str(root)]  # an install may be somebody else's
        run = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        return run.stdout.strip() if run.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    return commit and commit + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def machine() -> dict[str, object]:
    """Returns the machine in words and numbers; nothing that names it."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
    }


def cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def free_memory_gb() -> float:
    """Returns the memory that new processes may take, in GB; a container's own limit counts."""
    with open("/proc/meminfo") as file:
        meminfo = dict(line.split(":", 1) for line in file)
    free = int(meminfo["MemAvailable"].split()[0]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and used.is_file() and (text := limit.read_text().strip()) != "max":
        free = min(free, int(text) - int(used.read_text()))
    return max(free, 0) / 1e9


def oom_kills() -> int:
    """Returns how many processes the kernel has ended for want of memory since it started, containers' among them; 0
    where it does not say."""
    with open("/proc/vmstat") as file:
        counts = dict(line.split() for line in file)
    return int(counts.get("oom_kill", 0))
