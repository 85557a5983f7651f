"""`unshare --mount --ipc … sandbox.py SPEC COMMAND …`: become a student, with a view of the machine of their own.

Root starts it; it needs the standard library and util-linux only. SPEC (JSON) is made by `specification`. The student
sees the system and the lab's code read-only, the home, private /tmp and /dev/shm; neither the volume nor others.
"""

import glob
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hub import limits

WRITABLE = ("/tmp", "/var/tmp", "/dev/shm")  # by every student, each in memory of their own
# The log is in the student's own space, which may be full.
LOGGED = 'command : > "$0" && exec > "$0" 2>&1 || exec > /dev/null 2>&1; exec "$@" < /dev/null'
SYSTEM = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


def specification(account: Any, settings: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return SPEC for a student's account (`hub.store.Account`) and the class's settings."""
    assets = os.path.join(settings["volume"], "assets")
    return {
        "id": account.id, "uid": account.uid, "home": str(account.home), "target": f"/home/{account.name}",
        "hidden": [path for path in ("/home", "/root", "/media", "/mnt") if os.path.isdir(path)],
        "volume": settings["volume"], "code": settings["code"],
        "shared": {"assets": assets} if os.path.isdir(assets) else {},
        "memory_gb": settings["memory_gb"], "cpus": settings["cpus"], "processes": settings["processes"],
        "tmp_mb": settings["tmp_mb"], "gpu": False, "log": ".notebook.log", **changes,
    }  # fmt: skip


def command(spec: dict[str, Any], words: list[str]) -> list[str]:
    """Return the command line that runs a command as a student."""
    own_view = ["unshare", "--mount", "--ipc", "--"]
    return [*own_view, sys.executable, "-I", str(Path(__file__).resolve()), json.dumps(spec), *words]


def mount(*words: str) -> None:
    """Run mount(8). Its paths are taken as they are: /proc/self/fd/N is an open directory that is hidden by now."""
    subprocess.run(["mount", "--no-canonicalize", *words], env=SYSTEM, check=True, close_fds=False)


def mount_memory(path: str, options: str) -> None:
    """Mount an empty file system in memory."""
    mount("-t", "tmpfs", "-o", f"nosuid,nodev,{options}", "tmpfs", path)


def build_view(spec: dict[str, Any]) -> None:
    """Mount what the student sees; only this process and its children do."""
    opened = {path: os.open(path, os.O_PATH) for path in (*spec["code"], *spec["shared"].values(), spec["home"])}

    def bind(source: str, target: str, options: str) -> None:
        os.makedirs(target, exist_ok=True)
        os.set_inheritable(opened[source], True)
        mount("--bind", "-o", f"nosuid,nodev,{options}", f"/proc/self/fd/{opened[source]}", target)

    for path in spec["hidden"]:
        mount_memory(path, "mode=755,size=1m")
    for path in WRITABLE:
        mount_memory(path, f"mode=1777,size={spec['tmp_mb']}m")
    for path in spec["code"]:
        if any(Path(path).is_relative_to(hidden) for hidden in (*spec["hidden"], *WRITABLE)):
            bind(path, path, "ro")
    if os.path.isdir(spec["volume"]):
        mount_memory(spec["volume"], "mode=755,size=1m")
    bind(spec["home"], spec["target"], "rw")
    for name, path in spec["shared"].items():
        target = os.path.join(spec["target"], name)
        if not os.path.islink(target):  # a student could point it elsewhere
            bind(path, target, "ro")
    for descriptor in opened.values():
        os.close(descriptor)
    mount("-t", "proc", "-o", "nosuid,nodev,noexec,hidepid=2", "proc", "/proc")
    if not spec["gpu"]:
        for path in (*glob.glob("/dev/nvidia*"), *glob.glob("/dev/dri/*")):
            if not os.path.isdir(path):
                mount("--bind", "/dev/null", path)


if __name__ == "__main__":  # this process becomes the command
    spec = json.loads(sys.argv[1])
    limits.join(spec["id"], spec["memory_gb"], spec["cpus"])
    build_view(spec)
    os.chdir(spec["target"])
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (spec["processes"],) * 2)  # of the uid, threads included
    student = [f"--reuid={spec['uid']}", f"--regid={spec['uid']}", "--clear-groups", "--no-new-privs"]
    os.execv("/usr/bin/setpriv", ["setpriv", *student, "--", "/bin/sh", "-c", LOGGED, spec["log"], *sys.argv[2:]])
