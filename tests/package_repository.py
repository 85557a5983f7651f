"""A package repository for Docker's, NVIDIA's and a distribution's: real apt, real keys, next to empty packages."""

import hashlib
import re
import subprocess
from pathlib import Path

DOCKERS = ("docker-ce", "docker-ce-cli", "containerd.io", "docker-buildx-plugin", "docker-compose-plugin")
DRAWING = "lab-drawing"  # for the libraries of a distribution
UNITS, WANTED = "usr/lib/systemd/system", "[Install]\nWantedBy=multi-user.target\n"
SLEEPS = f"[Service]\nExecStart=/bin/sleep infinity\n{WANTED}"
ENGINE = {f"{UNITS}/docker.service": SLEEPS}
TOOLKIT = {
    "usr/bin/nvidia-ctk": """#!/usr/bin/python3
import json, pathlib
file = pathlib.Path("/etc/docker/daemon.json")
file.write_text(json.dumps({**json.loads(file.read_text()), "runtimes": {"nvidia": "nvidia-container-runtime"}}))
""",
    f"{UNITS}/nvidia-cdi-refresh.service": SLEEPS,
    f"{UNITS}/nvidia-cdi-refresh.path": f"[Path]\nPathChanged=/usr/bin/nvidia-ctk\n{WANTED}",
}


class Repository:
    """A repository of packages that hold next to nothing, signed with a key made for it."""

    def __init__(self, directory: Path, release: str) -> None:
        self.directory, self.home = directory, directory / "gnupg"
        self.home.mkdir(mode=0o700)
        self.gpg("--passphrase", "", "--quick-generate-key", "lab tests", "ed25519")
        (directory / "gpg").write_text(self.gpg("--armor", "--export"))
        self.fingerprint = re.search(r"fpr:+(\w+):", self.gpg("--with-colons", "--fingerprint"))[1]
        suite = f"dists/{release}"
        pool = [self.package(name, "pool", ENGINE if name == "docker-ce" else {}) for name in (*DOCKERS, DRAWING)]
        self.index(f"{suite}/stable/binary-amd64", pool, suite)
        self.index("amd64", [self.package("nvidia-container-toolkit", "amd64", TOOLKIT)], "amd64")
        subprocess.run(["gpgconf", "--homedir", str(self.home), "--kill", "all"])  # its agent would stay

    def gpg(self, *words: str, **more: object) -> str:
        line = ["gpg", "--homedir", str(self.home), "--batch", "--yes", "--pinentry-mode", "loopback", *words]
        return subprocess.run(line, check=True, capture_output=True, text=True, **more).stdout

    def package(self, name: str, directory: str, files: dict[str, str]) -> str:
        """Makes a package of those files, and what lies in bin can be run; returns its entry of an index."""
        control = f"Package: {name}\nVersion: 1\nArchitecture: amd64\nMaintainer: lab\nDescription: of the tests\n"
        tree = self.directory / "trees" / name
        for place, text in {"DEBIAN/control": control, **files}.items():
            (tree / place).parent.mkdir(parents=True, exist_ok=True)
            (tree / place).write_text(text)
            (tree / place).chmod(0o755 if "/bin/" in place else 0o644)
        file = self.directory / directory / f"{name}.deb"
        file.parent.mkdir(exist_ok=True)
        subprocess.run(["dpkg-deb", "--build", "--root-owner-group", tree, file], check=True, capture_output=True)
        data = file.read_bytes()
        where = f"pool/{file.name}" if directory == "pool" else file.name  # NVIDIA's repository is a flat one
        return f"{control}Filename: {where}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"

    def index(self, place: str, entries: list[str], release: str) -> None:
        """Writes the list of packages, and the signed file that vouches for it."""
        listed, signed = self.directory / place / "Packages", self.directory / release / "InRelease"
        listed.parent.mkdir(parents=True, exist_ok=True)
        listed.write_text("\n".join(entries))
        data = listed.read_bytes()
        name = listed.relative_to(signed.parent)
        text = f"Codename: {signed.parent.name}\nComponents: stable\nArchitectures: amd64\n"
        text += "Date: Thu, 01 Jan 2026 00:00:00 UTC\n"
        signed.with_name("Release").write_text(
            f"{text}SHA256:\n {hashlib.sha256(data).hexdigest()} {len(data)} {name}\n"
        )
        self.gpg("--clearsign", "--output", str(signed), str(signed.with_name("Release")))
