"""The machine itself: system, memory, disks, automatic upgrades."""

from __future__ import annotations

import re

from vlalab.doctor.check import FAIL, WARN, Context, Finding, check, fail, ok, skip, warn
from vlalab.host.memory import format_size

TESTED = {"ubuntu": ("22.04", "24.04"), "debian": ("12", "13")}
MIN_MEMORY = 2 * 10**9  # bytes of one simulator process (docs/machine.md)
MIN_SHM = 10**9  # bytes; data loaders pass batches through it
FULL, LOW = 10**8, 5 * 10**9  # bytes free; an evaluation with few videos takes some MB
UPGRADED = ("nvidia-driver*", "nvidia-kernel*", "docker.io", "docker-ce", "containerd*")  # patterns of dpkg


@check("os", "operating system", FAIL, "install Ubuntu 22.04 or 24.04, or Debian 12 or 13")
def operating_system(context: Context) -> Finding:
    """Setup is tested on four releases, on x86_64; the locks also hold for aarch64."""
    fields = dict(re.findall(r'(?m)^(\w+)="?(.*?)"?$', context.machine.read("/etc/os-release") or ""))
    name, version = fields.get("ID", "unknown"), fields.get("VERSION_ID", "")
    kernel = (context.machine.read("/proc/sys/kernel/osrelease") or "").strip()
    arch, is_wsl = context.machine.run("uname", "-m").out.strip(), "microsoft" in kernel.lower()
    label = f"{fields.get('PRETTY_NAME') or name}{', inside WSL 2' if is_wsl else ''}"
    details = {"id": name, "version": version, "wsl": is_wsl, "kernel": kernel, "machine": arch}
    if arch not in ("x86_64", "aarch64", ""):
        reason = f"this machine is {arch}; the locks have wheels for x86_64 and aarch64"
        return fail(reason, "", "use another", details=details)
    if version not in TESTED.get(name, ()):
        reason = f"{label}; the lab supports Ubuntu 22.04 and 24.04, Debian 12 and 13"
        return warn(reason, "", "expect to install packages by hand", details=details)
    if arch == "aarch64":
        reason = f"{label} on aarch64: the locks have its wheels, but the lab was never run on it"
        return warn(reason, "", "see docs/machine.md#systems", details=details)
    return ok(label, details=details)


@check("memory", "memory", FAIL, "./lab status", before=("eval", "reproduce", "record", "learn"))
def memory(context: Context) -> Finding:
    """The kernel kills simulators that run out of memory, and torch's data loaders if /dev/shm is small."""
    fields = dict(re.findall(r"(\w+):\s+(\d+) kB", context.machine.read("/proc/meminfo") or ""))
    if "MemAvailable" not in fields:
        return skip("/proc/meminfo is not readable")
    free, total = (int(fields[name]) * 1024 for name in ("MemAvailable", "MemTotal"))
    usage, details = f"{format_size(free)} of {format_size(total)} free", {"free": free, "total": total}
    if free < MIN_MEMORY:
        reason = f"{usage}; one simulator process takes up to {format_size(MIN_MEMORY)}"
        return (fail if free < MIN_MEMORY / 4 else warn)(reason, hint="list the running services", details=details)
    shm = context.machine.disk("/dev/shm")
    if shm and shm.total < MIN_SHM:
        reason = f"/dev/shm has {format_size(shm.total)}; data loaders need {format_size(MIN_SHM)} or more"
        return warn(reason, "sudo mount -o remount,size=8g /dev/shm", details=details)
    return ok(usage, details=details)


@check("disk-volume", "disk of the volume", FAIL, "./lab runs",
       before=("up", "eval", "reproduce", "record", "train", "finetune", "learn"))  # fmt: skip
def volume_disk(context: Context) -> Finding:
    """Downloads and runs stop halfway."""
    return _space(context, str(context.volume), "the volume's disk", "list the runs and remove old ones")


@check("disk-clone", "disk of the clone", FAIL, "./lab clean --venvs")
def clone_disk(context: Context) -> Finding:
    """Environments cannot be installed."""
    return _space(context, str(context.root), "the clone's disk", "see what can be freed")


def _space(context: Context, path: str, name: str, hint: str) -> Finding:
    disk = context.machine.disk(path)
    if disk is None:
        return skip(f"{path} does not exist")
    usage, details = (
        f"{format_size(disk.free)} of {format_size(disk.total)} free at {path}",
        {"free": disk.free, "total": disk.total},
    )
    if disk.free_inodes < 0.01:
        return fail(f"no more files fit at {path}: its inodes are used up", hint=hint, details=details)
    if disk.free < FULL:
        return fail(f"{usage}: {name} is full", hint=hint, details=details)
    return warn(f"{usage}: soon full", hint=hint, details=details) if disk.free < LOW else ok(usage, details=details)


@check("upgrades", "automatic upgrades", WARN, "sudo ./lab host setup --only upgrades")
def upgrades(context: Context) -> Finding:
    """A new driver takes the GPU from running programs, a new engine stops every container."""
    settings = context.machine.run("apt-config", "dump").out if context.machine.which("unattended-upgrade") else ""
    if not re.search(r'(?m)^APT::Periodic::Unattended-Upgrade "[^0"]', settings):
        return skip("unattended-upgrades is off")
    excluded = re.findall(r'(?m)^Unattended-Upgrade::Package-Blacklist:: "(.+)";', settings)
    if not re.search(r'(?mi)^Unattended-Upgrade::(Allowed-Origins|Origins-Pattern):: ".*docker', settings):
        excluded += ["docker-ce", r"containerd\.io"]  # of Docker's repository, which it does not touch
    query = r"${db:Status-Want} ${db:Status-Status} ${Package}\n"
    listing = context.machine.run("dpkg-query", "-W", "-f", query, *UPGRADED).out
    packages = re.findall(r"(?m)^install installed (\S+)$", listing)
    names = ", ".join(name for name in packages if not any(re.match(pattern, name) for pattern in excluded))
    if names:
        return warn(f"unattended-upgrades may replace {names} overnight: no GPU, or every container stops")
    return ok("unattended-upgrades leaves driver and engine alone")
