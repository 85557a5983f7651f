"""The machine itself: system, cores, memory, disks, clock, limits."""

from __future__ import annotations

import re

from vlalab.doctor.types import FAIL, WARN, Case, Check, Finding, fail, ok, skip, warn
from vlalab.host.memory import spell

TESTED = {"ubuntu": ("22.04", "24.04"), "debian": ("12", "13")}
KERNEL = (5, 4)  # the oldest that a release named above had
LEAST_MEMORY = 2 * 10**9  # one simulator process (docs/machine.md)
LEAST_SHM = 10**9  # data loaders pass batches through it
LEAST_FILES = 1024  # descriptors: an evaluation has some per worker, a data loader more
FULL, TIGHT = 10**8, 5 * 10**9  # an evaluation with few videos takes some MB
INDEX = "pypi.org"  # its clock is good enough to compare with
TAKEN = ("nvidia-driver*", "nvidia-kernel*", "docker.io", "docker-ce", "containerd*")  # packages, as dpkg matches them
CLOCK_S = 300.0  # tokens and certificates forgive that much


def operating_system(case: Case) -> Finding:
    """Tells the distribution, and whether it is one that the set-up was made for."""
    text = case.machine.read("/etc/os-release") or ""
    fields = dict(re.findall(r'(?m)^(\w+)="?(.*?)"?$', text))
    name, version = fields.get("ID", "unknown"), fields.get("VERSION_ID", "")
    kernel = case.machine.read("/proc/sys/kernel/osrelease") or ""
    wsl = ", inside WSL 2" if "microsoft" in kernel.lower() else ""
    shown = f"{fields.get('PRETTY_NAME') or name}{wsl}"
    facts = {"id": name, "version": version, "wsl": bool(wsl)}
    if version in TESTED.get(name, ()):
        return ok(shown, facts=facts)
    tested = "Ubuntu 22.04 and 24.04, Debian 12 and 13"
    return warn(f"{shown}; the lab is made for {tested}", hint="expect to install packages by hand", facts=facts)


def kernel(case: Case) -> Finding:
    """Compares the kernel and the processor's kind with what the pinned wheels need."""
    release = (case.machine.read("/proc/sys/kernel/osrelease") or "").strip()
    found = re.match(r"(\d+)\.(\d+)", release)
    said = case.machine.run("uname", "-m")
    arch = said.out.strip() if said else ""
    facts = {"release": release, "machine": arch}
    if arch not in ("x86_64", ""):
        return fail(
            f"this is a machine of kind {arch}; the locks hold wheels for x86_64", hint="use another", facts=facts
        )
    if not found or (int(found[1]), int(found[2])) < KERNEL:
        return warn(f"kernel {release or 'unknown'}; 5.4 or newer is expected", hint="update it", facts=facts)
    return ok(f"{release} {arch}".strip(), facts=facts)


def cores(case: Case) -> Finding:
    """Counts processors, and how busy they are."""
    count = len(re.findall(r"(?m)^processor\s*:", case.machine.read("/proc/cpuinfo") or ""))
    load = float((case.machine.read("/proc/loadavg") or "0").split()[0])
    shown, facts = f"{count} cores, load {load:.1f}", {"cores": count, "load": load}
    if count < 2:
        return warn(
            f"{shown}; an evaluation has a simulator and a policy to run", hint="expect it to be slow", facts=facts
        )
    return ok(f"{shown}: busy" if load > 2 * count else shown, facts=facts)


def memory(case: Case) -> Finding:
    """Compares the memory that is free with what one simulator process takes."""
    found = {
        name: int(kb) * 1024 for name, kb in re.findall(r"(\w+):\s+(\d+) kB", case.machine.read("/proc/meminfo") or "")
    }
    if "MemAvailable" not in found:
        return skip("/proc/meminfo says nothing")
    free, total = found["MemAvailable"], found["MemTotal"]
    shown, facts = f"{spell(free)} of {spell(total)} free", {"free": free, "total": total}
    if free < LEAST_MEMORY:
        return (fail if free < LEAST_MEMORY / 4 else warn)(
            f"{shown}; one simulator process takes up to {spell(LEAST_MEMORY)}", fix="./lab status",
            hint="see what of the lab is up", facts=facts,
        )  # fmt: skip
    return ok(shown, facts=facts)


def shared_memory(case: Case) -> Finding:
    """Measures /dev/shm, through which data loaders of local processes pass their batches."""
    disk = case.machine.disk("/dev/shm")
    if disk is None:
        return skip("there is no /dev/shm")
    if disk.total < LEAST_SHM:
        return warn(
            f"/dev/shm has {spell(disk.total)}; data loaders need {spell(LEAST_SHM)} or more",
            fix="sudo mount -o remount,size=8g /dev/shm",
        )
    return ok(f"/dev/shm has {spell(disk.total)}")


def _space(case: Case, path: str, what: str, fix: str, hint: str) -> Finding:
    disk = case.machine.disk(path)
    if disk is None:
        return skip(f"{what} is not there")
    shown, facts = f"{spell(disk.free)} of {spell(disk.total)} free at {path}", {"free": disk.free, "total": disk.total}
    more = {"fix": fix, "hint": hint, "facts": facts}
    if disk.free_inodes < 0.01:
        return fail(f"no more files fit at {path}: its inodes are used up", **more)
    if disk.free < FULL:
        return fail(f"{shown}: {what} is full", **more)
    if disk.free < TIGHT:
        return warn(f"{shown}: soon full", **more)
    return ok(shown, facts=facts)


def volume_disk(case: Case) -> Finding:
    """Measures where checkpoints, data sets and runs lie."""
    return _space(case, str(case.volume), "the volume's disk", "./lab runs", "see which runs can go")


def clone_disk(case: Case) -> Finding:
    """Measures where environments lie."""
    return _space(case, str(case.root), "the clone's disk", "./lab clean --venvs", "see what can be freed")


def clock(case: Case) -> Finding:
    """Compares the clock with the newest file of the clone and, where there is a network, with a server's."""
    now = case.machine.now()
    made = max((path.stat().st_mtime for path in case.root.glob("*.lock")), default=0.0)
    fix = "sudo timedatectl set-ntp true"
    if now < made - 86400:
        return fail(
            f"the clock is {(made - now) / 86400:.0f} days behind this clone's own files: no certificate holds", fix=fix
        )
    theirs = None if case.offline else case.machine.fetch(f"https://{INDEX}/").date
    if theirs is not None and abs(now - theirs) > CLOCK_S:
        return fail(f"the clock is {abs(now - theirs) / 60:.0f} min off from the network's", fix=fix)
    said = case.machine.run("timedatectl", "show", "--property=NTPSynchronized", "--value")
    if theirs is None and said and said.code == 0 and said.out.strip() == "no":
        return warn("the clock is not synchronised", fix=fix)
    return ok("agrees with the network's" if theirs is not None else "not before this clone's own files")


def upgrades(case: Case) -> Finding:
    """Look for packages of the driver and the engine that unattended-upgrades may replace under running programs."""
    said = case.machine.run("apt-config", "dump") if case.machine.which("unattended-upgrade") else None
    settings = said.out if said else ""
    if not re.search(r'(?m)^APT::Periodic::Unattended-Upgrade "[^0"]', settings):
        return skip("unattended-upgrades is off")
    kept = re.findall(r'(?m)^Unattended-Upgrade::Package-Blacklist:: "(.+)";', settings)
    if not re.search(r'(?mi)^Unattended-Upgrade::(Allowed-Origins|Origins-Pattern):: ".*docker', settings):
        kept += ["docker-ce", r"containerd\.io"]  # of Docker's repository, which it leaves alone
    listed = case.machine.run("dpkg-query", "-W", "-f", r"${db:Status-Want} ${db:Status-Status} ${Package}\n", *TAKEN)
    names = re.findall(r"(?m)^install installed (\S+)$", listed.out if listed else "")
    taken = [name for name in names if not any(re.match(pattern, name) for pattern in kept)]
    if taken:
        return warn(
            f"unattended-upgrades may replace {', '.join(taken)} overnight: no GPU, or every container stops",
            fix="sudo ./lab host setup --only upgrades",
        )
    return ok("unattended-upgrades leaves driver and engine alone")


def limits(case: Case) -> Finding:
    """Reads how many files a process may have open."""
    found = re.search(
        r"(?m)^Max open files\s+(\d+|unlimited)\s+(\d+|unlimited)", case.machine.read("/proc/self/limits") or ""
    )
    if not found:
        return skip("/proc/self/limits says nothing")
    if found[1] != "unlimited" and int(found[1]) < LEAST_FILES:
        return warn(f"a process may open {found[1]} files; {LEAST_FILES} or more are expected", fix="ulimit -n 4096")
    return ok(f"{found[1]} open files")


CHECKS = (
    Check("os", "operating system", "Set-up and driver packages are known for four releases.", WARN,
          "install Ubuntu 22.04 or 24.04, or Debian 12 or 13", operating_system),
    Check("kernel", "kernel", "The pinned wheels are for x86_64 and a kernel of this decade.", FAIL,
          "sudo apt-get dist-upgrade", kernel),
    Check("cores", "processors", "Simulators take a core each.", WARN, "nproc", cores),
    Check("memory", "memory", "A simulator process that finds no memory is killed by the kernel.", FAIL, "./lab status",
          memory, before=("eval", "record", "learn")),
    Check("shm", "shared memory", "torch's data loaders end with a bus error where it is small.", WARN,
          "sudo mount -o remount,size=8g /dev/shm", shared_memory, needs="torch"),
    Check("disk-volume", "disk of the volume", "Downloads and runs end in the middle.", FAIL, "./lab runs", volume_disk,
          before=("up", "eval", "record", "train", "finetune", "learn")),
    Check("disk-clone", "disk of the clone", "An environment cannot be made.", FAIL, "./lab clean --venvs", clone_disk),
    Check("clock", "clock", "With a wrong clock no certificate holds, and runs are out of order.", FAIL,
          "sudo timedatectl set-ntp true", clock),
    Check("ulimits", "open files", "A process that opens more files than it may ends.", WARN, "ulimit -n 4096", limits),
    Check("upgrades", "automatic upgrades", "A new driver or engine stops what runs.", WARN,
          "sudo ./lab host setup --only upgrades", upgrades),
)  # fmt: skip
