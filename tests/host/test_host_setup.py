"""`./lab host setup`: the playbook for real, on a copy of this machine, with a package repository of the tests' own."""

import hashlib
import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.host import machine_copy
from vlalab.commands import hosting, machines
from vlalab.commands.hosting import Setup
from vlalab.commands.machines import Machine
from vlalab.host import paths
from vlalab.host.console import LabError

NOTHING = {"extras": [], "users": [], "boot": []}
DOCKERS = ("docker-ce", "docker-ce-cli", "containerd.io", "docker-buildx-plugin", "docker-compose-plugin")
NVIDIA_CTK = """#!/bin/sh
mkdir -p /etc/docker && echo '{"runtimes": {"nvidia": "nvidia-container-runtime"}}' > /etc/docker/daemon.json
"""


def playbook(*words: str, values: dict | None = None, **asked: object) -> list[str]:
    line = hosting.command(Setup(values=values or NOTHING, **asked), "localhost,")
    return [*line, "-e", json.dumps({"lab_root": "/opt/lab of all", **(values or NOTHING)}), *words]


def test_the_playbook_is_one(tmp_path):
    done = subprocess.run(playbook("--syntax-check"), env=machines.variables(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_step_is_a_tag_and_every_setting_has_a_default():
    text = (paths.ADMIN / "setup.yaml").read_text()
    assert re.findall(r"tags: (\w+)", text) == ["always", *hosting.STEPS]
    given = {"engine": "none", "volume": "/srv/x", "lab": None, "from": None, "ca_bundle": None, "set": ["gpu=no"]}
    found = hosting.values({**given, "with": ["driver"], "user": ["anna"], "boot": []})
    assert found == {
        "engine": "none", "volume": "/srv/x", "gpu": "no", "extras": ["driver"], "users": ["anna"], "boot": []
    }  # fmt: skip
    with pytest.raises(LabError, match="did you mean 'docker_repository'"):
        hosting.values({**given, "with": [], "user": [], "boot": [], "set": ["docker_repositry=x"]})


def test_what_cannot_go_well_is_refused_first(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(LabError, match="takes root; run: sudo"):
        hosting.set_up(Setup(values=NOTHING))
    one = [Machine("gpu01", "gpu01")]
    with pytest.raises(LabError, match="--user anna,ben"):
        hosting.set_up(Setup(one, values={**NOTHING, "extras": ["rootless"]}))
    with pytest.raises(LabError, match="give one of them"):
        hosting.set_up(Setup(one, "machines.yaml", NOTHING))
    for text in ("-oProxyCommand=id", "gpu 01", "gpu01:99999", "@gpu01", "gpu01;id"):
        with pytest.raises(LabError, match="names no machine"):
            machines.read("--hosts", text)


# --- for real, on a copy of this machine -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    if why := machine_copy.lack():
        pytest.skip(why)
    with machine_copy.copied(tmp_path_factory.mktemp("machine")) as found:
        if found is None:
            pytest.skip("root may not mount an overlay here")
        yield found


class Repository:
    """A repository of packages that hold next to nothing, signed with a key made for it."""

    def __init__(self, folder: Path, release: str) -> None:
        self.folder, self.home = folder, folder / "gnupg"
        self.home.mkdir(mode=0o700)
        self.gpg("--passphrase", "", "--quick-generate-key", "lab tests", "ed25519")
        (folder / "gpg").write_text(self.gpg("--armor", "--export"))
        self.fingerprint = re.search(r"fpr:+(\w+):", self.gpg("--with-colons", "--fingerprint"))[1]
        suite = f"dists/{release}"
        self.index(f"{suite}/stable/binary-amd64", [self.package(name) for name in DOCKERS], suite)
        self.index("amd64", [self.package("nvidia-container-toolkit", NVIDIA_CTK)], "amd64")

    def gpg(self, *words: str, **more: object) -> str:
        line = ["gpg", "--homedir", str(self.home), "--batch", "--yes", "--pinentry-mode", "loopback", *words]
        return subprocess.run(line, check=True, capture_output=True, text=True, **more).stdout

    def package(self, name: str, program: str = "") -> str:
        """Makes a package, with a program nvidia-ctk in it where given; returns its entry of an index."""
        tree = self.folder / "trees" / name
        (tree / "DEBIAN").mkdir(parents=True)
        control = f"Package: {name}\nVersion: 1\nArchitecture: amd64\nMaintainer: lab\nDescription: of the tests\n"
        (tree / "DEBIAN" / "control").write_text(control)
        if program:
            (tree / "usr" / "bin").mkdir(parents=True)
            (tree / "usr" / "bin" / "nvidia-ctk").write_text(program)
            (tree / "usr" / "bin" / "nvidia-ctk").chmod(0o755)
        file = self.folder / ("amd64" if program else "pool") / f"{name}.deb"
        file.parent.mkdir(exist_ok=True)
        subprocess.run(["dpkg-deb", "--build", "--root-owner-group", tree, file], check=True, capture_output=True)
        data = file.read_bytes()
        where = file.name if program else f"pool/{file.name}"  # NVIDIA's repository is a flat one
        return f"{control}Filename: {where}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"

    def index(self, place: str, entries: list[str], release: str) -> None:
        """Writes the list of packages, and the signed file that vouches for it."""
        listed, signed = self.folder / place / "Packages", self.folder / release / "InRelease"
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


@pytest.fixture(scope="module")
def values(tmp_path_factory, copy):
    """What the runs are told: packages from a repository in a folder, users, a folder, a service."""
    folder = tmp_path_factory.mktemp("repository")
    made = Repository(folder, re.search(r"VERSION_CODENAME=(\w+)", copy.read("/etc/os-release"))[1])
    place = "/srv/repository"  # in the copy, where apt's own user can read it
    copy.run("cp", "-r", folder, place, check=True)
    copy.run("chmod", "-R", "a+rX", place, check=True)
    return {
        **NOTHING, "users": ["vlatest"], "boot": ["oracle"], "volume": "/srv/lab of all", "gpu": "yes",
        "docker_repository": f"file://{place}", "docker_fingerprint": made.fingerprint,
        "nvidia_repository": f"file://{place}", "nvidia_key": f"file://{place}/gpg",
        "nvidia_fingerprint": made.fingerprint,
    }  # fmt: skip


def changed(done: subprocess.CompletedProcess[str]) -> int:
    """Returns how many tasks changed something."""
    assert done.returncode == 0, done.stdout + done.stderr
    return int(re.search(r"localhost +: ok=\d+ +changed=(\d+)", done.stdout)[1])


@pytest.fixture(scope="module")
def play(copy, values):
    def run(*words: str, **asked: object) -> subprocess.CompletedProcess[str]:
        return copy.run(*playbook(*words, values=values, **asked), env=machines.variables())

    return run


KEY_ONLY = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.include_tasks: {steps}/repository.yaml
      vars: {{repository: docker, address: "{{{{ docker_repository }}}}", key: "{{{{ docker_repository }}}}/gpg"}}
"""


def test_a_key_that_is_not_the_expected_one_does_not_stay(copy, values):
    path = "/srv/key.yaml"
    text = KEY_ONLY.format(steps=paths.ADMIN / "steps")
    copy.run("sh", "-c", f"cat > {path} <<'END'{text}END", check=True)
    line = [*machines.ansible("playbook"), "-i", "localhost,", "--connection", "local", path]
    given = {**values, "fingerprint": "0" * 40, "suite": "any"}
    done = copy.run(*line, "-e", json.dumps(given), env=machines.variables())
    assert done.returncode != 0 and "is not the key 0000" in re.sub(r"\s+", " ", done.stdout), done.stdout
    assert copy.run("ls", "/etc/apt/keyrings/docker.asc", "/etc/apt/sources.list.d/docker.sources").returncode == 2


def test_a_run_makes_the_machine_ready_and_a_second_one_changes_nothing(copy, play):
    copy.run("mkdir", "-p", "/opt/lab of all", check=True)
    assert changed(play()) > 0
    there = copy.run("dpkg-query", "-W", "-f", "${Package} ${Status}\n", *DOCKERS, "nvidia-container-toolkit").stdout
    assert there.count("install ok installed") == 6
    assert "nvidia-container-runtime" in copy.read("/etc/docker/daemon.json")
    groups = copy.run("id", "-nG", "vlatest", check=True).stdout.split()
    assert "vlalab" in groups
    assert copy.run("stat", "-c", "%A %U:%G", "/srv/lab of all").stdout.strip() == "drwxrwsr-t root:vlalab"
    assert copy.read("/opt/lab of all/.env") == "VLALAB_VOLUME=/srv/lab of all/${USER:-root}\n"
    unit = copy.read("/etc/systemd/system/vla-lab.service")
    assert 'RequiresMountsFor="/opt/lab of all" "/srv/lab of all"\n' in unit and "User=vlatest\n" in unit
    assert 'ExecStart="/opt/lab of all/lab" up oracle\n' in unit
    assert "multi-user.target.wants" in copy.run("find", "/etc/systemd/system", "-name", "vla-lab.service").stdout
    assert changed(play()) == 0
