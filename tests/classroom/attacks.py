"""Run as a student: try to reach another student, the class or the host, and print which attempts succeeded.

argv: JSON with the victim's pid, uid, home and files, the class's directory, the repository, and what may be read.
"""

import ctypes
import glob
import json
import os
import resource
import signal
import socket
import subprocess
import sys

T = json.loads(sys.argv[1])
LIBC = ctypes.CDLL(None, use_errno=True)


def read(path):
    with open(path, "rb") as file:
        return file.read(64)


def write(path, text="attacked"):
    with open(path, "a") as file:
        return file.write(text)


def through_link(path):
    os.makedirs("links", exist_ok=True)
    link = f"links/{len(os.listdir('links'))}"
    os.symlink(path, link)
    return read(link)


def hard_link(path):
    os.link(path, "hard")
    return read("hard")


def libc(name, *arguments):
    if getattr(LIBC, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), name)
    return True


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, timeout=20)


def in_user_namespace(command):
    """Root inside a user namespace may mount, but not undo what hides the host."""
    done = run("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", command)
    return T["secret"].encode() in done.stdout or b"root:" in done.stdout


def see_processes():
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return [pid for pid in pids if os.stat(f"/proc/{pid}").st_uid != os.getuid()]


def foreign_descriptors():
    names = [os.readlink(path) for path in glob.glob("/proc/self/fd/*") if os.path.lexists(path)]
    return [name for name in names if T["volume"] in name or name.startswith(("/root", "/var"))]


def leave_group():
    for path in glob.glob("/sys/fs/cgroup/**/cgroup.procs", recursive=True)[:2000]:
        try:
            write(path, str(os.getpid()))
            return path
        except OSError:
            continue
    raise PermissionError


def connect(address):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address)
        return True


V, C, R = T["pid"], T["class"], T["root"]
ATTEMPTS = {
    "read a file of the victim's home": lambda: read(f"{T['home']}/secret"),
    "list the victim's home": lambda: os.listdir(T["home"]),
    "list all homes": lambda: os.listdir(f"{C}/homes"),
    "write into the victim's home": lambda: write(f"{T['home']}/secret"),
    "make a file in the victim's home": lambda: write(f"{T['home']}/new"),
    "remove the victim's file": lambda: os.remove(f"{T['home']}/secret"),
    "read at the victim's own path": lambda: read(f"/home/{T['name']}/secret"),
    "read above the home": lambda: read(f"../{T['name']}/secret"),
    "read through a link": lambda: through_link(f"{T['home']}/secret"),
    "read a home through a link to its directory": lambda: through_link(f"{T['home']}/../../accounts.json"),
    "hard link to the victim's file": lambda: hard_link(f"{T['home']}/secret"),
    "read the file system of the victim's home": lambda: read(f"{T['home']}.img"),
    "read accounts": lambda: read(f"{C}/accounts.json"),
    "read secrets": lambda: read(f"{C}/secrets.json"),
    "read the hub's database": lambda: read(f"{C}/hub.sqlite"),
    "write accounts": lambda: write(f"{C}/accounts.json"),
    "read the tokens of the policy": lambda: read(f"{T['volume']}/tokens.json"),
    "read another run on the volume": lambda: read(f"{T['volume']}/runs/secret"),
    "write on the volume": lambda: write(f"{T['volume']}/runs/new") and os.path.getsize(f"{T['volume']}/runs/new"),
    "change a shared part": lambda: write("assets/shared.txt"),
    "add to a shared part": lambda: write("assets/new.txt"),
    "remove a shared part": lambda: os.remove("assets/shared.txt"),
    "replace a shared part": lambda: os.rename("assets", "assets2"),
    "read the victim's variables": lambda: read(f"/proc/{V}/environ"),
    "read the victim's memory": lambda: read(f"/proc/{V}/mem"),
    "read through the victim's root": lambda: read(os.path.join(f"/proc/{V}", "root", "home", T["name"], "secret")),
    "read through the victim's directory": lambda: read(f"/proc/{V}/cwd/secret"),
    "list the victim's open files": lambda: os.listdir(f"/proc/{V}/fd"),
    "see processes of others": see_processes,
    "kill the victim's kernel": lambda: os.kill(V, signal.SIGKILL) or True,
    "pause the victim's kernel": lambda: os.kill(V, signal.SIGSTOP) or True,
    "trace the victim's kernel": lambda: libc("ptrace", 16, V, 0, 0),
    "limit the victim's kernel": lambda: resource.prlimit(V, resource.RLIMIT_NOFILE, (1, 1)),
    "slow the victim down": lambda: os.setpriority(os.PRIO_PROCESS, V, 19) or True,
    "read the victim's /tmp": lambda: read("/tmp/victim"),
    "read the victim's shared memory": lambda: read("/dev/shm/victim"),
    "become root": lambda: os.setuid(0) or True,
    "become the victim": lambda: os.setuid(T["uid"]) or True,
    "sudo": lambda: run("sudo", "-n", "true"),
    "su": lambda: run("su", "-c", "true"),
    "raise the limit of processes": lambda: resource.setrlimit(resource.RLIMIT_NPROC, (9999, 9999)) or True,
    "leave the control group": leave_group,
    "unmount what hides the volume": lambda: libc("umount2", T["volume"].encode(), 2),
    "unmount it as root of a user namespace": lambda: in_user_namespace(
        f"umount {T['volume']}; umount -l {T['volume']}; umount /home; cat {T['home']}/secret"),
    "read the host's passwords so": lambda: in_user_namespace("cat /etc/shadow"),
    "mount the victim's file system": lambda: run("mount", f"{T['home']}.img", "/tmp"),
    "chroot": lambda: os.chroot("/") or True,
    "make a device": lambda: os.mknod("disk", 0o600 | 0o060000, os.makedev(7, 0)) or read("disk"),
    "read a disk": lambda: read(sorted(glob.glob("/dev/loop[0-9]*") + glob.glob("/dev/[sv]d?"))[0]),
    "read the kernel's log device": lambda: write("/dev/kmsg"),
    "read the host's passwords": lambda: read("/etc/shadow"),
    "add a user to the host": lambda: write("/etc/passwd"),
    "read root's home": lambda: [  # where Python and the lab may be
        name for name in os.listdir("/root")
        if not any(f"{path}/".startswith(os.path.join("/root", name, "")) for path in T["code"])],
    "change the lab's code": lambda: write(f"{R}/services/__init__.py"),
    "change the hub's code": lambda: write(f"{R}/hub/login.py"),
    "change an environment": lambda: write(f"{R}/hub/.venv/pyvenv.cfg"),
    "the engine's socket": lambda: connect("/run/docker.sock"),
    "set the kernel's core handler": lambda: write("/proc/sys/kernel/core_pattern"),
    "trigger sysrq": lambda: write("/proc/sysrq-trigger", "h"),
    "enter the namespaces of process 1": lambda: os.open("/proc/1/ns/mnt", os.O_RDONLY),
    "descriptors that root left open": foreign_descriptors,
    "use a GPU that was not granted": lambda: read(T["gpu"]) if T["gpu"] else None,
}  # fmt: skip

succeeded = {}
for name, attempt in ATTEMPTS.items():
    try:
        if result := attempt():
            succeeded[name] = repr(result)[:200]
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        pass
print(json.dumps({"attempts": len(ATTEMPTS), "succeeded": succeeded}))
