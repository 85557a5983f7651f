"""`./lab fleet` against real SSH servers of this machine: one is off, one is slow, one is strange, the rest answer."""

import getpass
import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests import ssh_server
from tests.ports import free_ports
from vlalab.commands import fleet
from vlalab.commands.fleet import RemoteMachine
from vlalab.host.console import LabError

USABLE = {"schema": 1, "exit_code": 0, "checks": [{"verdict": "pass", "why": "all is well", "fix": ""}]}
SICK = {"schema": 1, "exit_code": 2, "checks": [
    {"verdict": "warn", "why": "little memory", "fix": ""},
    {"verdict": "fail", "why": "the driver is too old", "fix": "sudo apt-get install nvidia-driver"},
]}  # fmt: skip

pytestmark = pytest.mark.skipif(ssh_server.SSHD is None, reason="no sshd here (openssh-server)")


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Two servers whose keys are known, a third whose is not; HOME is where the client's key and that list lie."""
    with ssh_server.running(tmp_path_factory.mktemp("fleet"), ["one", "two", "strange"], ("strange",)) as started:
        yield started


@pytest.fixture(autouse=True)
def home(servers, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("HOME", str(servers[0].key.parent.parent / "home"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


def lab(directory: Path, script: str) -> str:
    """Makes a folder with a `lab` that runs `script`; returns it."""
    directory.mkdir()
    (directory / "lab").write_text(f"#!/bin/sh\n{script}\n")
    (directory / "lab").chmod(0o755)
    return str(directory)


def saying(directory: Path, answer: dict) -> str:
    (directory.with_suffix(".json")).write_text(json.dumps(answer))
    return lab(directory, f"[ \"$*\" = 'doctor --json' ] || exit 9\ncat '{directory}.json'\nexit {answer['exit_code']}")


def at(name: str, port: int, root: str = "/no/such/folder") -> RemoteMachine:
    return RemoteMachine(name, "127.0.0.1", getpass.getuser(), port, None, root)


def rows(capsys) -> dict[str, dict]:
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["task"]) == (1, "doctor")
    return {row["machine"]: row for row in told["machines"]}


def test_a_dead_a_slow_and_a_strange_machine_spoil_no_others_row(servers, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(fleet, "CONNECT_S", 2.0)
    well = saying(tmp_path / "päth with space", USABLE)
    ill = saying(tmp_path / "ill", SICK)
    hangs = lab(tmp_path / "hangs", "sleep 20")  # more than is waited for, and no long leftover
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and never says a word
        asked = [
            at("off", free_ports(1)[0]), at("silent", silent.getsockname()[1]), at("well", servers[0].port, well),
            at("ill", servers[1].port, ill), at("hangs", servers[0].port, hangs), at("bare", servers[1].port),
            at("strange", servers[2].port, well),
        ]  # fmt: skip
        code = fleet.run("doctor", asked, parallel=8, timeout_s=6.0, as_json=True)
    found = rows(capsys)
    assert code == 2 and list(found) == [one.name for one in asked]
    assert {name for name, row in found.items() if row["verdict"] == "pass"} == {"well"}
    assert found["well"]["answer"] == USABLE and found["ill"]["answer"] == SICK
    assert found["ill"]["what"] == "the driver is too old (and 1 more)"
    assert found["ill"]["fix"] == "sudo apt-get install nvidia-driver"
    assert "nothing answers at port" in found["off"]["what"] and "no answer within 2 s" in found["silent"]["what"]
    assert "no end within 6 s" in found["hangs"]["what"]
    assert (
        found["bare"]["what"] == "the lab is not installed there"
        and "./lab host setup --hosts bare" in found["bare"]["fix"]
    )
    assert "host key is not known" in found["strange"]["what"]
    assert found["strange"]["fix"] == f"ssh -p {servers[2].port} {getpass.getuser()}@127.0.0.1"


def test_changed_host_key_is_rejected(servers, tmp_path, capsys):
    known = Path(os.environ["HOME"]) / ".ssh" / "known_hosts"
    before = known.read_text()
    known.write_text(before + f"[127.0.0.1]:{servers[2].port} {servers[0].key.with_suffix('.pub').read_text()}")
    try:
        assert fleet.run("doctor", [at("swapped", servers[2].port)], 1, 30.0, as_json=True) == 2
    finally:
        known.write_text(before)
    assert "another than the known one" in rows(capsys)["swapped"]["what"]


def test_pull_brings_a_clone_up_to_date_and_its_environments_with_it(servers, tmp_path, capsys):
    def git(*words: str, cwd: Path) -> str:
        who = ("-c", "user.name=lab", "-c", "user.email=lab@localhost")
        return subprocess.run(["git", *who, *words], cwd=cwd, check=True, capture_output=True, text=True).stdout.strip()

    origin, clone = tmp_path / "origin", tmp_path / "clone"
    lab(origin, 'echo "$@" >> made')
    git("init", "-q", "-b", "main", cwd=origin)
    git("add", "lab", cwd=origin)
    git("commit", "-q", "-m", "one", cwd=origin)
    git("clone", "-q", str(origin), str(clone), cwd=tmp_path)
    for name in ("libero", "openvla/cu130"):
        (clone / "images" / name / ".venv").mkdir(parents=True)
    git("commit", "-q", "--allow-empty", "-m", "two", cwd=origin)
    machine = [at("one", servers[0].port, str(clone))]
    assert fleet.run("pull", machine, 1, 60.0, as_json=False) == 0
    assert " → " in capsys.readouterr().out
    assert git("rev-parse", "HEAD", cwd=clone) == git("rev-parse", "HEAD", cwd=origin)
    assert (clone / "made").read_text() == (
        "--version\nenv libero --variant upstream\nenv openvla-cu130 --variant upstream\n"
    )
    assert fleet.run("pull", machine, 1, 60.0, as_json=False) == 0
    assert "already at " in capsys.readouterr().out
    git("commit", "-q", "--allow-empty", "-m", "own work", cwd=clone)
    git("commit", "-q", "--allow-empty", "-m", "three", cwd=origin)
    assert fleet.run("pull", machine, 1, 60.0, as_json=False) == 2
    assert "fast-forward" in capsys.readouterr().out


STATUS = {"schema": 1, "services": [
    {"name": "oracle", "state": "up", "health": "healthy"}, {"name": "ui", "state": "up", "health": "not ready"},
    {"name": "gr00t", "state": "down", "health": None},
]}  # fmt: skip
DOING = """case "$*" in
"status --json") cat status.json;;
restart) [ -f broken ] && { echo "lab: 'oracle' ended with code 3" >&2; exit 1; }; echo done > restarted;;
*) exit 9;;
esac"""


@pytest.mark.parametrize(("verb", "code"), [("status", 1), ("restart", 2)])
def test_status_and_restart_reach_each_machine_and_a_failure_is_its_own(verb, code, servers, tmp_path, capsys):
    roots = [lab(tmp_path / name, DOING) for name in ("well", "ill")]
    for root, services in zip(roots, (STATUS["services"][:1], STATUS["services"]), strict=True):
        Path(root, "status.json").write_text(json.dumps({**STATUS, "services": services}))
    Path(roots[1], "broken").touch()
    asked = [at("well", servers[0].port, roots[0]), at("ill", servers[1].port, roots[1])]
    assert fleet.run(verb, asked, 2, 120.0, as_json=True) == code
    told = {row["machine"]: row for row in json.loads(capsys.readouterr().out)["machines"]}
    assert told["well"]["verdict"] == "pass"
    if verb == "status":
        assert told["well"]["what"] == "oracle healthy" and told["well"]["answer"]["schema"] == 1
        assert told["ill"]["what"] == "oracle healthy, ui not ready"
        assert told["ill"]["fix"] == "./lab fleet restart --hosts ill"
    else:
        assert Path(roots[0], "restarted").exists() and told["ill"]["what"] == "'oracle' ended with code 3"


def test_inventory_lists_the_machines(servers, tmp_path, capsys):
    inventory = tmp_path / "machines.yaml"
    user, root = getpass.getuser(), saying(tmp_path / "lab", USABLE)
    inventory.write_text(
        "lab:\n"
        f"  vars: {{ansible_host: 127.0.0.1, ansible_user: {user}, lab_root: {root}}}\n"
        f"  hosts: {{gpu02: {{ansible_port: {servers[1].port}}}, gpu01: {{ansible_port: {servers[0].port}}}}}\n"
    )
    found = fleet.select([], str(inventory))
    assert [(one.name, one.port, one.root) for one in found] == [
        ("gpu01", servers[0].port, root), ("gpu02", servers[1].port, root)
    ]  # fmt: skip
    assert fleet.run("doctor", found, 4, 60.0, as_json=True) == 0
    (tmp_path / "empty.yaml").write_text("all:\n")
    with pytest.raises(LabError, match="no machines found in"):
        fleet.read_inventory(tmp_path / "empty.yaml")
