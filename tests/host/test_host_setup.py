"""`./lab host setup`: the playbook for real, on a copy of this machine, with a package repository of the tests' own."""

import ipaddress
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.host import machine_copy
from tests.host.recorded_machine import Recorded
from tests.lab import run_lab
from tests.package_repository import DOCKERS, DRAWING, Repository
from vlalab.commands import fleet, host_setup
from vlalab.commands.fleet import RemoteMachine
from vlalab.commands.host_setup import Setup
from vlalab.doctor.check import PASS, Context
from vlalab.doctor.checks import host
from vlalab.host import gl, paths
from vlalab.host.console import LabError

UPGRADES = Path(__file__).parent / "machines/upgrades-nvidia.json"  # what a driver and an engine are installed as
NOTHING = {"extras": [], "users": [], "boot": []}


def playbook(*words: str, values: dict | None = None, **asked: object) -> list[str]:
    line = host_setup.command(Setup(values=values or NOTHING, **asked), "localhost,")
    return [*line, "-e", json.dumps({"lab_root": "/opt/lab of all", **(values or NOTHING)}), *words]


def test_the_playbook_is_one(tmp_path):
    done = subprocess.run(playbook("--syntax-check"), env=fleet.variables(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_step_is_a_tag_and_every_setting_has_a_default(monkeypatch, capsys):
    text = (paths.ADMIN / "setup.yaml").read_text()
    assert re.findall(r"tags: (\w+)", text) == ["always", *host_setup.STEPS]
    assert yaml.safe_load((paths.ADMIN / "defaults.yaml").read_text())["drawing"] == list(gl.PACKAGES)
    monkeypatch.setattr(host_setup, "run", lambda setup: setups.append(setup) or 0)
    setups, words = [], ["--engine", "none", "--volume", "/srv/x", "--with", "driver", "--user", "anna"]
    assert run_lab("host", "setup", *words, "--set", "gpu=no") == 0
    assert setups[0].values == {
        "engine": "none", "volume": "/srv/x", "gpu": "no", "extras": ["driver"], "users": ["anna"], "boot": []
    }  # fmt: skip
    assert run_lab("host", "setup", "--set", "docker_repositry=x") == 1
    assert "did you mean 'docker_repository'" in capsys.readouterr().err


def test_invalid_settings_are_rejected_first(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(LabError, match="requires root; run: sudo"):
        host_setup.run(Setup(values=NOTHING))
    one = [RemoteMachine("gpu01", "gpu01")]
    with pytest.raises(LabError, match="--user anna,ben"):
        host_setup.run(Setup(one, values={**NOTHING, "extras": ["rootless"]}))
    with pytest.raises(LabError, match="give one of them"):
        host_setup.run(Setup(one, "machines.yaml", NOTHING))
    for text in ("-oProxyCommand=id", "gpu 01", "gpu01:99999", "@gpu01", "gpu01;id"):
        with pytest.raises(LabError, match="invalid --hosts"):
            fleet.read("--hosts", text)


# --- for real, on a copy of this machine -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    if why := machine_copy.lack():
        pytest.skip(why)
    with machine_copy.copied(tmp_path_factory.mktemp("machine")) as found:
        if found is None:
            pytest.skip("root may not mount an overlay here")
        yield found


@pytest.fixture(scope="module")
def values(tmp_path_factory, copy):
    """What the runs are told: packages from a repository in a folder, users, a folder, a service."""
    directory = tmp_path_factory.mktemp("repository")
    made = Repository(directory, re.search(r"VERSION_CODENAME=(\w+)", copy.read("/etc/os-release"))[1])
    place = "/srv/repository"  # in the copy, where apt's own user can read it
    copy.run("cp", "-r", directory, place, check=True)
    copy.run("chmod", "-R", "a+rX", place, check=True)
    return {
        **NOTHING, "users": ["vlatest"], "boot": ["oracle"], "volume": "/srv/lab of all", "gpu": "yes",
        "docker_repository": f"file://{place}", "docker_fingerprint": made.fingerprint,
        "nvidia_repository": f"file://{place}", "nvidia_key": f"file://{place}/gpg",
        "nvidia_fingerprint": made.fingerprint, "drawing": [DRAWING],
    }  # fmt: skip


def changed(done: subprocess.CompletedProcess[str]) -> int:
    """Returns how many tasks changed something."""
    assert done.returncode == 0, done.stdout + done.stderr
    return int(re.search(r"localhost +: ok=\d+ +changed=(\d+)", done.stdout)[1])


@pytest.fixture(scope="module")
def play(copy, values):
    def run(*words: str, **asked: object) -> subprocess.CompletedProcess[str]:
        return copy.run(*playbook(*words, values=values, **asked), env=fleet.variables())

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
    line = [*fleet.ansible("playbook"), "-i", "localhost,", "--connection", "local", path]
    given = {**values, "fingerprint": "0" * 40, "suite": "any"}
    done = copy.run(*line, "-e", json.dumps(given), env=fleet.variables())
    assert done.returncode != 0 and "is not the key 0000" in re.sub(r"\s+", " ", done.stdout), done.stdout
    assert copy.run("ls", "/etc/apt/keyrings/docker.asc", "/etc/apt/sources.list.d/docker.sources").returncode == 2


def test_a_run_makes_the_machine_ready_and_a_second_one_changes_nothing(copy, play):
    copy.run("sh", "-c", """mkdir -p "/opt/lab of all" /etc/docker && echo '{"mtu": 1400}' > /etc/docker/daemon.json""")
    assert changed(play()) > 0
    wanted = (*DOCKERS, "nvidia-container-toolkit", DRAWING)
    there = copy.run("dpkg-query", "-W", "-f", "${Package} ${Status}\n", *wanted).stdout
    assert there.count("install ok installed") == 7
    daemon = json.loads(copy.read("/etc/docker/daemon.json"))
    assert (daemon["mtu"], daemon["runtimes"]) == (1400, {"nvidia": "nvidia-container-runtime"})
    pools = [(ipaddress.ip_network(one["base"]), one["size"]) for one in daemon["default-address-pools"]]
    assert sum(2 ** (size - base.prefixlen) for base, size in pools) == 768
    engines = [ipaddress.ip_network(base) for base in ("172.16.0.0/12", "192.168.0.0/16")]
    assert all(any(base.subnet_of(engine) for engine in engines) for base, _ in pools), "the engine's own, made smaller"
    said = copy.run("apt-config", "dump").stdout + 'APT::Periodic::Unattended-Upgrade "1";\n'
    commands = {**json.loads(UPGRADES.read_text())["commands"], "apt-config dump": {"out": said}}
    found = host.upgrades(Context(Recorded(commands=commands, programs={"unattended-upgrade": "/usr/bin/it"})))
    assert found.verdict == PASS, found
    groups = copy.run("id", "-nG", "vlatest", check=True).stdout.split()
    assert "vlalab" in groups
    assert copy.run("stat", "-c", "%A %U:%G", "/srv/lab of all").stdout.strip() == "drwxrwsr-t root:vlalab"
    assert copy.read("/opt/lab of all/.env") == "VLALAB_VOLUME=/srv/lab of all/${USER:-root}\n"
    unit = copy.read("/etc/systemd/system/vla-lab.service")
    assert 'RequiresMountsFor="/opt/lab of all" "/srv/lab of all"\n' in unit and "User=vlatest\n" in unit
    assert 'ExecStart="/opt/lab of all/lab" up oracle\n' in unit
    assert "multi-user.target.wants" in copy.run("find", "/etc/systemd/system", "-name", "vla-lab.service").stdout
    assert changed(play()) == 0


def test_a_directory_below_a_disk_that_is_not_mounted_is_not_made(copy, play):
    text = r"LABEL=none /srv/lab\\040of\\040all ext4 nofail 0 2"
    copy.run("sh", "-c", f"printf '{text}\\n' > /etc/fstab", check=True)
    try:
        done = play(only=["volume"])
    finally:
        copy.run("rm", "/etc/fstab")
    assert done.returncode != 0, done.stdout
    assert "/srv/lab of all is in /etc/fstab and not mounted" in re.sub(r"\s+", " ", done.stdout)
