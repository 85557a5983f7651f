"""What apt gives: system packages that the tests install, and the engine's, which are unpacked into a private folder.

The engine comes from the machine's own mirror. Debian 12's own is too old (no named build contexts), so there it is the
next release's, read with package lists of its own: the system's lists and its installed packages stay as they are.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

# Which release's engine runs on which: its own, unless that one is too old.
NEWER = {"bookworm": "trixie"}
ENGINE = {
    "debian": ("docker.io", "docker-cli", "docker-compose", "docker-buildx", "tini"),
    "ubuntu": ("docker.io", "docker-compose-v2", "docker-buildx"),
}
OLDEST = {"debian": 12, "ubuntu": 22}  # VERSION_ID, its first number
PATIENCE = ["-o", "Acquire::http::Timeout=20", "-o", "Acquire::https::Timeout=20", "-o", "Acquire::Retries=2"]


class Unavailable(Exception):
    """Why the docker tests cannot run here, in one sentence for the user."""


@dataclass(frozen=True)
class System:
    """A Debian or Ubuntu: its id ("debian"), its codename ("bookworm"), and the mirror its apt uses."""

    id: str
    codename: str
    mirror: str


def system() -> System:
    """Returns what this machine is. Raises Unavailable where it is no Debian or Ubuntu that can carry the engine."""
    if platform.machine() != "x86_64":
        raise Unavailable(f"the images are for x86-64, this machine is {platform.machine()}")
    about = platform.freedesktop_os_release() if Path("/etc/os-release").exists() else {}
    name, version = about.get("ID", "an unknown system"), about.get("VERSION_ID", "")
    if name not in OLDEST or not shutil.which("apt-get"):
        raise Unavailable(f"a private Docker engine can be brought up on Debian and Ubuntu only, this is {name}")
    if version and float(version) < OLDEST[name]:
        raise Unavailable(f"a private Docker engine needs {name} {OLDEST[name]} or newer, this is {version}")
    codename = about.get("VERSION_CODENAME", "")
    return System(name, codename, _mirror(codename))


def _mirror(codename: str) -> str:
    """Returns the address that apt gets the system from; apt itself reads its sources, of either format."""
    shown = _output(["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages"])
    pairs = [line.split() for line in shown.splitlines() if len(line.split()) == 2]
    ours = [address for release, address in pairs if release == codename]
    ours += [address for release, address in pairs if "-" not in release]  # "stable", "testing"
    if not ours:
        raise Unavailable("apt names no mirror of this system (apt-get indextargets)")
    return ours[0]


def keyring(of: System) -> Path:
    """Returns the file with the keys that the distribution signs its releases with."""
    return Path(f"/usr/share/keyrings/{of.id}-archive-keyring.gpg")


def install(*names: str) -> None:
    """Installs those packages that are missing on the system. Raises Unavailable with apt's words when it cannot."""
    missing = [name for name in names if not _is_installed(name)]
    if not missing:
        return
    print(f"lab: for the tests: apt-get install {' '.join(missing)}", flush=True)
    command = ["apt-get", *PATIENCE, "install", "-y", "-q", "--no-install-recommends", *missing]
    _with_lists(command, f"apt-get could not install {', '.join(missing)}")


def _is_installed(name: str) -> bool:
    asked = subprocess.run(["dpkg-query", "-W", "-f", "${Status}", name], capture_output=True, text=True)
    return asked.returncode == 0 and asked.stdout.endswith(" installed")


def _with_lists(command: list[str], failed: str, **options) -> None:
    """Runs an apt command; where it fails, once more after `apt-get update`."""
    if _runs(command, **options) is None or _runs(["apt-get", *PATIENCE, "update", "-q"]) is None:
        return
    if words := _runs(command, **options):
        raise Unavailable(f"{failed}: {words}")


def fetch(address: str, path: Path, sha256: str) -> str | None:
    """Fetches a file by apt's own means, its proxy among them. Returns None, or its last words where that failed."""
    as_root = ["-o", "APT::Sandbox::User=root"]  # the folder is closed to others
    return _runs(
        ["/usr/lib/apt/apt-helper", *PATIENCE, *as_root, "download-file", address, str(path), f"SHA256:{sha256}"]
    )


def unpack_engine(of: System, directory: Path, programs: Path | None = None) -> list[Path]:
    """Unpacks the engine, Compose, buildx and what runs containers into `folder`/root, or links those of `programs`.

    Returns the folders to put on PATH. containerd and runc are the system's own where it has them.
    """
    root = directory / "root"
    if programs:
        shutil.copytree(programs / "root", root, symlinks=True, copy_function=os.link)
    else:
        _fetch_engine(of, directory, root)
    return [root / part for part in ("usr/bin", "usr/sbin", "usr/libexec/docker")]


def _fetch_engine(of: System, directory: Path, root: Path) -> None:
    archives = directory / "archives"
    archives.mkdir(parents=True)
    runtime = [name for name, program in (("containerd", "containerd"), ("runc", "runc")) if not shutil.which(program)]
    if runtime:
        _with_lists(["apt-get", *PATIENCE, "download", "-q", *runtime], f"no {' and no '.join(runtime)}", cwd=archives)
    _download_engine(of, directory / "apt", archives)
    for archive in sorted(archives.glob("*.deb")):
        subprocess.run(["dpkg", "-x", str(archive), str(root)], check=True)
    shutil.rmtree(archives)


def _download_engine(of: System, lists: Path, archives: Path) -> None:
    release = NEWER.get(of.codename, of.codename)
    options = _own_lists(of, release, lists)
    if words := _runs(["apt-get", *options, *PATIENCE, "update", "-q"]):
        raise Unavailable(f"the packages of {release} could not be listed (no network?): {words}")
    if words := _runs(["apt-get", *options, *PATIENCE, "download", "-q", *ENGINE[of.id]], cwd=archives):
        raise Unavailable(f"the Docker engine of {release} could not be downloaded: {words}")
    shutil.rmtree(lists)


def _own_lists(of: System, release: str, lists: Path) -> list[str]:
    """Returns the options under which apt reads that release alone, and writes into `lists` alone."""
    for name in ("lists/partial", "cache/archives/partial"):
        (lists / name).mkdir(parents=True)
    signed = f"[signed-by={keyring(of)}] " if keyring(of).exists() else ""
    parts = "main universe" if of.id == "ubuntu" else "main"
    suites = [release, f"{release}-updates"] if of.id == "ubuntu" else [release]
    (lists / "sources.list").write_text("".join(f"deb {signed}{of.mirror} {suite} {parts}\n" for suite in suites))
    set_to = {
        "Dir::Etc::sourcelist": lists / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": lists / "lists",
        "Dir::Cache": lists / "cache",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",  # the private folder is closed to others
    }
    return [word for key, value in set_to.items() for word in ("-o", f"{key}={value}")]


def _runs(command: list[str], **options) -> str | None:
    """Runs a command. Returns None when it went well, else its last words in one line."""
    variables = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, **options
        )
    except subprocess.TimeoutExpired:
        return f"{' '.join(command[:1])} took more than 300 s"
    if done.returncode == 0:
        return None
    return " / ".join((done.stderr or done.stdout).strip().splitlines()[-3:]) or f"exit code {done.returncode}"


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}).stdout
