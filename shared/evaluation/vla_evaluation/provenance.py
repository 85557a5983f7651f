"""The provenance of a result besides its configuration: versions, code, commit, machine."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

from vla_common.versions import LOCK, ROOT, normalize, read_pins, versions
from vla_evaluation import imports
from vla_evaluation.benchmark import Benchmark

SITE = Path(sysconfig.get_path("purelib"))
WORKER = "vla_evaluation.workers.worker"


def code_digest(benchmark: Benchmark, worker: str = WORKER) -> str:
    """Return 16 hex digits over the source of every module of a worker: a change in one is drift."""
    return imports.code_digest((worker, benchmark.module), benchmark.uncounted)


def off_lock(lock: Path = LOCK) -> list[str]:
    """Return the installed packages that have another version than the lock pins, as in "scipy 1.9.0 (lock: 1.8.1)".

    A lock pins some packages twice, for different Pythons; either is right here.
    """
    pins = read_pins(lock)
    # From the directories' names: reading the metadata takes 0.1 s each.
    parts = (path.name.removesuffix(".dist-info").rpartition("-") for path in SITE.glob("*.dist-info"))
    installed = {normalize(name): version for name, _, version in parts}
    mismatched = (name for name in sorted(pins.keys() & installed.keys()) if installed[name] not in pins[name])
    return [f"{name} {installed[name]} (lock: {' or '.join(pins[name])})" for name in mismatched]


def check_simulator(benchmark: Benchmark, warn: Callable[[str], object]) -> None:
    """Compare the benchmark's installed packages with its lock; pass differences and the fixing command to `warn`.

    Raises ValueError for versions that its code cannot run with: those that its `requires` excludes.
    """
    environment = getattr(benchmark, "environment", None) or benchmark.module.split(".")[-2]
    lock = LOCK if LOCK.is_file() else ROOT / "images" / environment / "requirements.lock"
    pins, installed = read_pins(lock), versions(benchmark.packages)
    different, unusable = [], []
    for name in benchmark.packages:
        pinned, version = pins.get(normalize(name), []), installed.get(name)
        required = getattr(benchmark, "requires", {}).get(name)
        lock_text = f"(lock: {' or '.join(pinned)})"
        if pinned and version not in pinned:
            different.append(f"{name} {version or 'not installed'} {lock_text}")
        if required and not f"{version}.".startswith(f"{required}."):
            package = f"{name} {version}" if version else f"no {name}"
            unusable.append(f"{package} is installed, and {benchmark.name} needs {required} {lock_text}")
    environment = lock.parent.name
    command = f"rm -r images/{environment}/.venv && ./lab env {environment}"
    if os.environ.get("VLALAB_LOCK_HASH"):  # in an image
        command = f"./lab build {environment}"
    if unusable:
        raise ValueError(f"{'; '.join(unusable)}; run: {command}")
    if different:
        warn(
            f"warning: other packages than the lock's: {', '.join(different)}. Physics and images may differ: results "
            "are comparable neither with published figures nor with runs under the lock. To install the lock's "
            f"packages: {command}"
        )


def git_commit() -> str | None:
    """Return the commit of the source tree, with "+" where it has local changes; None outside a checkout."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        return os.environ.get("VLALAB_COMMIT") or None

    def git(*arguments: str) -> str | None:
        command = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT)]  # an install may be another user's
        run = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        return run.stdout.strip() if run.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    return commit and commit + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def machine() -> dict[str, object]:
    """Return the machine's system, cores and memory; nothing that identifies it."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
    }


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def free_memory_gb() -> float:
    """Return the memory that new processes may take, in GB, within a container's own limit."""
    with open("/proc/meminfo") as file:
        meminfo = dict(line.split(":", 1) for line in file)
    free = int(meminfo["MemAvailable"].split()[0]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and used.is_file() and (text := limit.read_text().strip()) != "max":
        free = min(free, int(text) - int(used.read_text()))
    return max(free, 0) / 1e9
