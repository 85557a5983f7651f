"""`sandbox.py SPEC COMMAND …`: become a student, with a view of the machine of their own, and run a command.

Root starts it; it needs the standard library only. SPEC (JSON) is made by `hub.spawners.SandboxSpawner`. The student
sees the lab's code and the system read-only, the home, and private /tmp and /dev/shm. Other homes, the volume, GPUs
that were not granted and other users' processes are not visible.
"""

from __future__ import annotations

import ctypes
import glob
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hub import limits

LIBC = ctypes.CDLL(None, use_errno=True)
NEW_MOUNTS, NEW_IPC = 0x00020000, 0x08000000  # linux/sched.h
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18  # linux/mount.h
NO_NEW_PRIVS = 38  # linux/prctl.h
WRITABLE = ("/tmp", "/var/tmp", "/dev/shm")  # by every student, each in memory of their own


def specification(account: Any, settings: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return SPEC for a student's account (`hub.store.Account`) and the class's settings."""
    shared = {name: os.path.join(settings["volume"], name) for name in ("assets",)}
    return {
        "id": account.id, "uid": account.uid, "home": str(account.home), "target": f"/home/{account.name}",
        "hidden": [path for path in ("/home", "/root", "/media", "/mnt") if os.path.isdir(path)],
        "volume": settings["volume"], "code": settings["code"],
        "shared": {name: path for name, path in shared.items() if os.path.isdir(path)},
        "memory_gb": settings["memory_gb"], "cpus": settings["cpus"], "processes": settings["processes"],
        "tmp_mb": settings["tmp_mb"], "gpu": False, "log": ".notebook.log", **changes,
    }  # fmt: skip


def command(spec: dict[str, Any], words: list[str]) -> list[str]:
    """Return the command line that runs a command as a student."""
    scope = limits.prefix(spec["id"], spec["memory_gb"], spec["cpus"])
    return [*scope, sys.executable, "-I", str(Path(__file__).resolve()), json.dumps(spec), *words]


def call(name: str, *arguments: object) -> None:
    """Call a function of libc. Raises OSError if it fails."""
    if getattr(LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount, as in mount(2)."""
    call("mount", source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), data.encode())


def bind(descriptor: int, target: str, flags: int) -> None:
    """Mount an open directory or file at a path, without what is mounted below it."""
    mount(f"/proc/self/fd/{descriptor}", target, flags=BIND)
    mount("none", target, flags=BIND | REMOUNT | flags)


def build_view(spec: dict[str, Any]) -> None:
    """Give this process mounts of its own."""
    call("unshare", NEW_MOUNTS | NEW_IPC)
    mount("none", "/", flags=REC | PRIVATE)
    opened = {path: os.open(path, os.O_PATH) for path in (*spec["code"], *spec["shared"].values(), spec["home"])}
    for path in spec["hidden"]:
        mount("tmpfs", path, "tmpfs", NOSUID | NODEV, "mode=755,size=1m")
    for path in WRITABLE:
        mount("tmpfs", path, "tmpfs", NOSUID | NODEV, f"mode=1777,size={spec['tmp_mb']}m")
    for path in spec["code"]:
        if any(Path(path).is_relative_to(hidden) for hidden in (*spec["hidden"], *WRITABLE)):
            os.makedirs(path, exist_ok=True)
            bind(opened[path], path, RDONLY | NOSUID | NODEV)
    if os.path.isdir(spec["volume"]):
        mount("tmpfs", spec["volume"], "tmpfs", NOSUID | NODEV, "mode=755,size=1m")
    os.makedirs(spec["target"], exist_ok=True)
    bind(opened[spec["home"]], spec["target"], NOSUID | NODEV)
    for name, path in spec["shared"].items():
        target = os.path.join(spec["target"], name)
        if not os.path.islink(target):  # a student could point it elsewhere
            os.makedirs(target, exist_ok=True)
            bind(opened[path], target, RDONLY | NOSUID | NODEV)
    for descriptor in opened.values():
        os.close(descriptor)
    mount("proc", "/proc", "proc", NOSUID | NODEV | NOEXEC, "hidepid=2")
    if not spec["gpu"]:
        for path in (*glob.glob("/dev/nvidia*"), *glob.glob("/dev/dri/*")):
            if not os.path.isdir(path):
                mount("/dev/null", path, flags=BIND)


def become(spec: dict[str, Any]) -> None:
    """Give up root for the student's uid, for ever."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (spec["processes"],) * 2)  # of the uid, threads included
    os.setgroups([])
    os.setresgid(spec["uid"], spec["uid"], spec["uid"])
    os.setresuid(spec["uid"], spec["uid"], spec["uid"])
    call("prctl", NO_NEW_PRIVS, 1, 0, 0, 0)
    os.umask(0o077)


def main() -> None:
    """Run the command; this process becomes it."""
    spec, command = json.loads(sys.argv[1]), sys.argv[2:]
    if not limits.SYSTEMD.is_dir():
        limits.join(spec["id"], spec["memory_gb"], spec["cpus"])
    build_view(spec)
    become(spec)
    os.chdir(spec["target"])
    null = os.open(os.devnull, os.O_RDWR)
    try:  # the log is in the student's own space, which may be full
        log = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    except OSError:
        log = null
    for number, descriptor in enumerate((null, log, log)):
        os.dup2(descriptor, number)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
