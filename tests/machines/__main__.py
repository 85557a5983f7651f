"""`./lab host setup` and `./lab fleet` on bare machines: `.venv/bin/python -m tests.machines [NAME …] --mirror
SYSTEM=URL`, as root.

A machine is what debootstrap makes of a release, and an SSH server: no Python, no git, no certificates. systemd boots
it in a container (systemd-nspawn) on this machine's network; what is done there lies in memory and ends with it. It
takes minutes for each; the roots are kept. Stand-ins are what Docker's and NVIDIA's repositories hold there.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests import ssh_server
from tests.package_repository import Repository
from tests.ports import free_ports
from vlalab.host import paths
from vlalab.host.processes import die_with_parent

MIRRORS: dict[str, str] = {}  # of packages, by system: as told by --mirror
SCRIPTS = Path("/usr/share/debootstrap/scripts")
BARE = "systemd,systemd-sysv,dbus,openssh-server"
VOLUME = "/srv/vla-lab"
BOOTED = 120  # seconds
ASKED = "runuser -u ben -- /opt/vla-lab/lab doctor --offline --json"
# The network is this machine's: its addresses and its firewall are not this engine's to change.
DAEMON = {"bridge": "none", "iptables": False, "ip6tables": False, "storage-driver": "vfs"}


@dataclass(frozen=True)
class Kind:
    """A release, which engine it gets, and whether it is to have a card of NVIDIA's."""

    codename: str
    engine: str = "distribution"
    gpu: str = "no"

    @property
    def system(self) -> str:
        """Returns the distribution's name."""
        return "ubuntu" if self.codename in ("jammy", "noble") else "debian"

    @property
    def parts(self) -> str:
        """Returns the parts of its archive that a machine has."""
        return "main universe" if self.system == "ubuntu" else "main"


KINDS = {
    "debian-12": Kind("bookworm", "docker", "yes"),
    "debian-13": Kind("trixie"),
    "ubuntu-22.04": Kind("jammy"),
    "ubuntu-24.04": Kind("noble"),
}


def main() -> int:
    """Sets up each machine twice, asks all of them at once with one that is off, and prints a table; returns 0 or 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*KINDS, []], help=", ".join(KINDS))
    parser.add_argument(
        "--mirror", action="append", default=[], metavar="SYSTEM=URL", help="of debian's or ubuntu's packages"
    )
    kept = Path(tempfile.gettempdir()) / "vla-lab-roots"
    parser.add_argument("--roots", type=Path, default=kept, help="where roots are kept")
    parser.add_argument("--ca-bundle", type=Path, help="certificate of this network's authority")
    given = parser.parse_args()
    MIRRORS.update(one.partition("=")[::2] for one in given.mirror)
    if lacking := sorted({KINDS[name].system for name in given.names or KINDS} - MIRRORS.keys()):
        parser.error(f"no mirror of {' and '.join(lacking)}; add --mirror {lacking[0]}=URL")
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vla-lab-machines-")))
        home = _home(work)
        up = {name: stack.enter_context(running(name, given.roots, work, home)) for name in given.names or KINDS}
        told = [line for name, port in up.items() for line in _set_up(name, port, work, home, given.ca_bundle)]
        told += [line for name, port in up.items() for line in _disk(name, port, home)]
        told += _fleet([f"root@127.0.0.1:{port}" for port in up.values()], home)
    print("\n".join(f"{'ok' if well else 'FAILED':<7} {what}" for well, what in told))
    return 0 if all(well for well, _ in told) else 1


def _home(work: Path) -> Path:
    """Returns a home with a key, of a user who knows no machine yet."""
    (work / "home" / ".ssh").mkdir(parents=True, mode=0o700)
    ssh_server.new_key(work / "home" / ".ssh" / "id_ed25519")
    return work / "home"


# --- machines -----------------------------------------------------------------------------------------------


def root_of(kind: Kind, roots: Path) -> Path:
    """Returns the bare root of a release, made by debootstrap where it is not there."""
    root = roots / kind.codename
    if not (roots / f"{kind.codename}.ok").exists():
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        ubuntu = kind.system == "ubuntu"
        key = Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg")
        script = SCRIPTS / (kind.codename if (SCRIPTS / kind.codename).exists() else "jammy" if ubuntu else "bookworm")
        words = ["--no-check-gpg"] if ubuntu and not key.exists() else []  # a root that is thrown away
        line = ["debootstrap", "--variant=minbase", f"--include={BARE}", *words]
        subprocess.run([*line, kind.codename, root, MIRRORS[kind.system], script], check=True, stdout=sys.stderr)
        (roots / f"{kind.codename}.ok").touch()
    return root


@contextmanager
def running(name: str, roots: Path, work: Path, home: Path) -> Iterator[int]:
    """Holds a machine that has booted; yields its port of SSH."""
    kind, port, layers = KINDS[name], free_ports(1)[0], work / name
    for one in ("memory", "root"):
        (layers / one).mkdir(parents=True)
    memory, root = layers / "memory", layers / "root"
    bare = root_of(kind, roots)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6g", "tmpfs", memory], check=True)
    (memory / "upper").mkdir()
    (memory / "work").mkdir()
    options = f"lowerdir={bare},upperdir={memory}/upper,workdir={memory}/work"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, root], check=True)
    _prepare(root, kind, port, home)
    line = ["systemd-nspawn", "-q", "-D", root, "--boot", "--register=no", "--keep-unit", f"--machine={kind.codename}"]
    words = [*line, "--capability=all", "--resolv-conf=off", "--console=pipe"]
    with (work / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent()
        )
    try:
        ssh_server.wait_open(port)
        inside(port, home, f"timeout {BOOTED} systemctl is-system-running --wait")
        yield port
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
        subprocess.run(["umount", "--lazy", root, memory])


def _prepare(root: Path, kind: Kind, port: int, home: Path) -> None:
    """Lays into a root what who installs a machine brings, a key and an address, and what stands for repositories."""
    (root / "root" / ".ssh").mkdir(mode=0o700, exist_ok=True)
    shutil.copy(home / ".ssh" / "id_ed25519.pub", root / "root" / ".ssh" / "authorized_keys")
    (root / "etc/ssh/sshd_config.d/lab.conf").write_text(f"Port {port}\nListenAddress 127.0.0.1\n")
    lines = [f"deb {MIRRORS[kind.system]} {kind.codename}{more} {kind.parts}\n" for more in ("", "-updates")]
    (root / "etc/apt/sources.list").write_text("".join(lines))
    (root / "etc/hostname").write_text(f"{kind.codename}\n")
    (root / "etc/resolv.conf").unlink(missing_ok=True)
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    if kind.engine == "docker":
        (root / "srv/repository").mkdir()
        (root / "srv/fingerprint").write_text(Repository(root / "srv/repository", kind.codename).fingerprint)
        subprocess.run(["chmod", "-R", "a+rX", root / "srv/repository"], check=True)
    else:
        (root / "etc/docker").mkdir()
        (root / "etc/docker/daemon.json").write_text(json.dumps(DAEMON))
    subprocess.run(["git", "clone", "-q", "--bare", paths.ROOT, root / "srv/lab.git"], check=True)
    key = (root / "etc/ssh/ssh_host_ed25519_key.pub").read_text()
    with (home / ".ssh" / "known_hosts").open("a") as file:
        file.write(f"[127.0.0.1]:{port} {key}")


def ssh(home: Path) -> list[str]:
    """Returns ssh's words: OpenSSH takes its home from the system and not from HOME."""
    return ["-i", f"{home}/.ssh/id_ed25519", "-o", f"UserKnownHostsFile={home}/.ssh/known_hosts", "-F", "none"]


def inside(port: int, home: Path, command: str) -> str:
    """Returns what a command prints on a machine."""
    line = ["ssh", *ssh(home), "-p", str(port), "root@127.0.0.1", command]
    return subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout.strip()


# --- the lab's own commands ---------------------------------------------------------------------------------


def lab(home: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Returns what ./lab said."""
    own = {"HOME": str(home), "ANSIBLE_SSH_ARGS": " ".join(ssh(home)), "XDG_CACHE_HOME": os.path.expanduser("~/.cache")}
    line = [paths.ROOT / "lab", *map(str, words)]
    done = subprocess.run(line, env={**os.environ, **own}, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    sys.stderr.write(f"$ ./lab {' '.join(map(str, words))}\n{done.stdout}{done.stderr}\n")
    return done


def _set_up(name: str, port: int, work: Path, home: Path, bundle: Path | None) -> Iterator[tuple[bool, str]]:
    """Yields what was expected of a machine, and whether it is so."""
    kind = KINDS[name]
    words = ["host", "setup", "--hosts", f"root@127.0.0.1:{port}", "--engine", kind.engine, "--user", "anna,ben"]
    words += ["--ca-bundle", str(bundle)] if bundle else []
    words += ["--volume", VOLUME, "--boot", "oracle", "--from", "file:///srv/lab.git", "--set", f"gpu={kind.gpu}"]
    if kind.engine == "docker":
        mark = (work / name / "root/srv/fingerprint").read_text()
        given = {f"{one}_repository": "file:///srv/repository" for one in ("docker", "nvidia")}
        given |= {"docker_fingerprint": mark, "nvidia_fingerprint": mark, "nvidia_key": "file:///srv/repository/gpg"}
        words[-1] = ",".join([words[-1], *map("=".join, given.items())])
    first, second = lab(home, *words), lab(home, *words)
    for done, what in ((first, "the first run"), (second, "the second run")):
        counts = dict(re.findall(r"(\w+)=(\d+)", done.stdout.partition("PLAY RECAP")[2].partition("\n\n")[0]))
        changed = int(counts.get("changed", -1))
        well = counts.get("failed") == "0" and (changed > 0 if done is first else changed == 0)
        yield well, f"{name}: {what} changes {changed} things, fails at {counts.get('failed', 'all')}"
        yield done.returncode in (0, 1), f"{name}: the doctor afterwards says {done.returncode}"
    groups = "anna docker vlalab" if kind.engine == "distribution" else "anna vlalab"
    for command, expected in (
        ("id -nG anna | xargs -n 1 | sort | xargs", groups),
        (f"stat -c '%A %U:%G' {VOLUME}", "drwxrwsr-t root:vlalab"),
        ("systemctl is-enabled vla-lab docker", "enabled\nenabled"),
        ("systemctl is-active docker", "active"),
        (f'{ASKED} | grep -A 9 \'"id": "egl"\' | grep -c \'"verdict": "pass"\'', "1"),
        ("runuser -u ben -- /opt/vla-lab/lab --version | cut -d' ' -f1", "lab"),
    ):
        found = inside(port, home, command)
        yield found == expected, f"{name}: {command}: {found!r}"


MISSING = f"LABEL=missing {VOLUME} ext4 nofail,x-systemd.device-timeout=3s 0 2"
THERE = f"tmpfs {VOLUME} tmpfs defaults 0 0"
# In place of the lab's own command one that does well where the disk is there.
ONLY_MOUNTED = f"[Service]\\nExecStart=\\nExecStart=/usr/bin/findmnt {VOLUME}\\nExecStop=\\n"


def _disk(name: str, port: int, home: Path) -> Iterator[tuple[bool, str]]:
    """Yields what becomes of the unit and of a set-up while the volume's disk is missing, and once it is there."""
    unit = "/etc/systemd/system/vla-lab.service.d"
    inside(port, home, f"mkdir -p {unit} && printf '{ONLY_MOUNTED}' > {unit}/test.conf")
    start = "systemctl daemon-reload; systemctl start vla-lab; systemctl is-active vla-lab"
    said = inside(port, home, f"echo '{MISSING}' > /etc/fstab; {start}")
    yield said in ("inactive", "failed"), f"{name}: the unit while its disk is missing: {said}"
    again = lab(home, "host", "setup", "--hosts", f"root@127.0.0.1:{port}", "--only", "volume", "--volume", VOLUME)
    refused = again.returncode != 0 and "is in /etc/fstab and not mounted" in " ".join(again.stdout.split())
    yield refused, f"{name}: a set-up while the disk is missing is refused"
    said = inside(port, home, f"echo '{THERE}' > /etc/fstab; {start}; findmnt -n -o FSTYPE {VOLUME}")
    yield said.split() == ["active", "tmpfs"], f"{name}: the unit once the disk is there: {said.split()}"


def _fleet(hosts: list[str], home: Path) -> Iterator[tuple[bool, str]]:
    """Yields what all machines said at once, one of them off."""
    names = ",".join([*hosts, f"root@127.0.0.1:{free_ports(1)[0]}"])
    for verb in ("doctor", "status", "pull", "restart"):
        told = json.loads(lab(home, "fleet", verb, "--hosts", names, "--json").stdout)
        well = [row["machine"] for row in told["machines"] if row["verdict"] != "fail"]
        yield well == hosts, f"fleet {verb}: {len(well)} of {len(hosts)} and one that is off"


if __name__ == "__main__":
    sys.exit(main())
