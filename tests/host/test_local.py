"""The local runtime with a real child process: start, health, restart, stop, ports, and whom it never kills."""

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ports import free_ports
from vla_common import healthcheck
from vlalab.description import compose, gpus
from vlalab.environments import venvs
from vlalab.host import paths, state
from vlalab.host.console import LabError
from vlalab.runtimes import interface, local, logs, state_files

SERVICE = Path(__file__).with_name("small_service.py")
COMPOSE = """
services:
  small:
    x-local: tiny
    restart: {restart}
    stop_grace_period: 1s
    command:
      [python, "{script}", --host, "${{VLALAB_LISTEN:-0.0.0.0}}", --port, "${{VLALAB_SMALL_PORT:-{port}}}"{flags}]
    environment: {{DATA: /data/sub, X: "${{VLALAB_SMALL_X:-}}"}}
    volumes: [{{type: bind, source: "{data}", target: /data}}]
    ports: ["${{VLALAB_BIND:-127.0.0.1}}:${{VLALAB_SMALL_PORT:-{port}}}:${{VLALAB_SMALL_PORT:-{port}}}"]
    healthcheck:
      test: [CMD, python, -m, vla_common.healthcheck, "http://127.0.0.1:${{VLALAB_SMALL_PORT:-{port}}}/readyz"]
      timeout: 2s
"""


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A volume and an environment of its own; `lab(flags, restart)` starts the small service."""
    directory = tmp_path / "images" / "tiny"
    (directory / ".venv" / "bin").mkdir(parents=True)
    (directory / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (directory / "requirements.lock").write_text("# nothing\n")
    monkeypatch.setattr(venvs, "ensure", lambda name: venvs.LocalEnvironment(name, directory))
    monkeypatch.setattr(compose, "FILE", tmp_path / "compose.yaml")
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "volume"))
    monkeypatch.delenv("VLALAB_BIND", raising=False)

    def start(flags: str = "", restart: str = "unless-stopped", **options) -> local.Instance:
        words = "".join(f', "{flag}"' for flag in flags.split())
        compose.FILE.write_text(
            COMPOSE.format(restart=restart, script=SERVICE, port=start.port, flags=words, data=tmp_path / "data")
        )
        return local.start("small", **options)

    (start.port,) = free_ports(1)
    yield start
    for found in local.instances():
        found.stop()


def wait_for(condition, seconds: float = 60.0):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return value


def test_starts_gets_ready_and_stops(lab, tmp_path):
    lab("--ready-after 0.5")
    found = interface.wait_ready(local, "small", 60)
    assert found.url == f"http://127.0.0.1:{lab.port}"
    assert found.is_healthy()
    assert [i.name for i in local.instances()] == ["small"]
    assert f"folder {tmp_path}/data/sub" in found.log_tail()  # the mount, translated
    found.stop()
    assert local.instances() == []
    assert not found.child.is_alive()
    assert not found.supervisor.is_alive()


def test_a_killed_service_comes_back_at_the_same_address(lab):
    lab()
    before = interface.wait_ready(local, "small", 60)
    before.child.send(signal.SIGKILL)
    after = wait_for(lambda: (f := local.instance("small")) and f.starts == 2 and f.is_healthy() and f)
    assert after.url == before.url
    assert after.child != before.child
    assert after.last_exit == -9
    assert "ended with code -9" in after.log_tail()


def test_a_service_that_must_not_restart_leaves_no_trace(lab):
    lab(restart='"no"')
    interface.wait_ready(local, "small", 60).child.send(signal.SIGKILL)
    wait_for(lambda: local.instances() == [])
    assert not state_files.state_path("small").exists()


def test_one_that_ignores_sigterm_is_killed_after_its_grace_period(lab):
    lab("--deaf")
    found = interface.wait_ready(local, "small", 60)
    found.stop()
    assert not found.child.is_alive()
    assert "not gone after 1 s; killing it" in found.log_tail()


def test_a_taken_port_is_replaced_to_the_next_one(lab, capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        lab.port = other.getsockname()[1]
        lab()
        found = interface.wait_ready(local, "small", 60)
    assert found.url != f"http://127.0.0.1:{lab.port}"
    assert found.is_healthy()
    assert f"port {lab.port} is already in use" in capsys.readouterr().err


def test_a_service_that_crashes_at_the_start_is_reported_with_its_last_words(lab):
    lab("--crash")
    with pytest.raises(LabError, match="cannot load the weights"):
        interface.wait_ready(local, "small", 60)


def test_a_failed_start_is_reported_with_its_cause_first_and_without_earlier_starts(lab):
    lab()
    first = interface.wait_ready(local, "small", 60)
    before = first.log_tail()
    assert f"as process {first.child.pid}" in before
    first.stop()
    time.sleep(1.1)  # lines of the log bear seconds
    lab("--crash")
    with pytest.raises(LabError) as told:
        interface.wait_ready(local, "small", 60)
    head, _, tail = str(told.value).partition("\n")
    assert head == "service 'small' ended before it was ready: cannot load the weights"
    assert f"as process {first.child.pid}" not in tail and "--crash" in tail


OWNER = """
import sys, time
from pathlib import Path
from tests.ports import free_ports
from vlalab.description import compose
from vlalab.environments import venvs
from vlalab.runtimes import interface, local
directory, compose.FILE = Path({directory!r}), Path({compose!r})
venvs.ensure = lambda name: venvs.LocalEnvironment(name, directory)
local.start("small", instance_name="private", attached=True)
interface.wait_ready(local, "private", 60)
print("ready", flush=True)
time.sleep(60)
"""


def test_a_private_instance_ends_with_its_owner_even_by_kill_9(lab, tmp_path):
    lab().stop()  # writes the compose file
    code = OWNER.format(directory=str(tmp_path / "images" / "tiny"), compose=str(tmp_path / "compose.yaml"))
    variables = {**os.environ, "PYTHONPATH": paths.python_path()}
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=variables)
    try:
        assert owner.stdout.readline().strip() == "ready"
        found = local.instance("private")
        assert found.attached and found.is_healthy()
        owner.kill()
        wait_for(lambda: not found.child.is_alive() and not found.supervisor.is_alive())
        assert local.instance("private") is None
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()


def test_what_killed_owners_leave_behind_is_swept_at_the_next_start(lab):
    gone, top = 2**22 - 1, state.directory("logs", "private")
    living = subprocess.Popen(["sleep", "60"])
    swept = [top / f"oracle-{gone}.log", top / f"ws_mdl-{gone}.log.1", state.directory() / f".oracle-1.json.{gone}"]
    stays = [top / f"oracle-{living.pid}.log", top.parent / f"oracle-{gone}.log", state.directory() / ".oracle.lock"]
    try:
        for path in (*swept, *stays):
            path.write_text("")
        lab()
        assert not any(path.exists() for path in swept) and all(path.exists() for path in stays)
    finally:
        living.kill()
        living.wait()


def test_a_service_dies_with_its_supervisor(lab):
    lab()
    found = interface.wait_ready(local, "small", 60)
    found.supervisor.send(signal.SIGKILL)
    wait_for(lambda: not found.child.is_alive())
    assert local.instances() == []


def test_open_to_the_network_only_with_a_token(lab, monkeypatch):
    monkeypatch.setenv("VLALAB_BIND", "0.0.0.0")
    monkeypatch.delenv("VLALAB_TOKEN", raising=False)
    with pytest.raises(LabError, match="VLALAB_TOKEN"):
        lab()


# --- one description, two runtimes --------------------------------------------------------------------------


def test_another_services_name_becomes_its_address(lab, monkeypatch):
    """In a container http://openvla:8000 is the service's; here it is where that service listens, or would."""
    env = venvs.ensure("tiny")
    page = compose.read(variables={"VLALAB_UI_POLICY": "http://oracle:8001"})["ui"]
    command, _ = local.resolve(page, env)
    asked = command.index("--policy-url") + 1
    assert command[asked] == "http://127.0.0.1:8001"
    lab()
    found = interface.wait_ready(local, "small", 60)
    monkeypatch.setattr(local, "instance", lambda name: found if name == "oracle" else None)
    command, variables = local.resolve(replace(page, environment={"A": "http://oracle:8001/x", "B": "http://x:1"}), env)
    assert command[asked] == found.url
    assert (variables["A"], variables["B"]) == (f"{found.url}/x", "http://x:1")


@pytest.mark.parametrize(("gpu", "visible"), [("1", "1"), ("1,0", "1,0"), ("none", ""), ("all", None), ("", None)])
def test_the_choice_of_a_gpu_is_what_the_process_sees(gpu, visible, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    choice, variables = gpus.visible("openvla", {"VLALAB_OPENVLA_GPU": gpu})
    assert variables.get("CUDA_VISIBLE_DEVICES") == visible
    assert variables.get("CUDA_DEVICE_ORDER") == ("PCI_BUS_ID" if gpu != "none" else None), "as nvidia-smi counts"
    assert choice == ("" if visible is None else gpu)
    assert gpus.visible("oracle", {"VLALAB_ORACLE_GPU": "1"}) == ("", {})


def test_one_that_runs_with_the_same_settings_is_left_alone(lab):
    first = lab(variables={"VLALAB_SMALL_X": "1", "VLALAB_OTHER_X": "1"})
    interface.wait_ready(local, "small", 60)
    again = lab(variables={"VLALAB_SMALL_X": "1", "VLALAB_OTHER_X": "2"})
    assert again.supervisor == first.supervisor
    changed = lab(variables={"VLALAB_SMALL_X": "2"})
    assert changed.supervisor != first.supervisor and not first.supervisor.is_alive()


def test_a_shell_runs_in_the_environment(lab, monkeypatch, capfd):
    monkeypatch.setattr(compose, "read", lambda *_, **__: {"small": replace(page_of_nothing(), name="small")})
    assert local.shell("small", "command -v python; exit 3") == 3
    assert "images/tiny/.venv/bin/python" in capfd.readouterr().out


def page_of_nothing() -> compose.ComposeService:
    return compose.ComposeService("x", "tiny", (), {}, (), None, (), "no", 1.0, "service", (), ())


# --- a full disk --------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path, monkeypatch):
    """State and logs on a file system of 1 MB, most of it taken by a file named filler."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "vlalab-test", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("only root where it may mount has a disk to fill")
    monkeypatch.setenv("VLALAB_STATE", str(place))
    (place / "filler").write_bytes(bytes(800_000))
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_every_service_has_a_check_that_it_can_ask():
    for service in compose.read(variables={}).values():
        assert service.health is None or local.check_url(service).startswith("http://127.0.0.1:")


def test_a_service_continues_when_the_disk_is_full(small_disk, lab):
    """Its output is taken all the time, or it would stop at a full pipe; it is killed and comes back, unnoted."""
    lab("--chatty")
    found = interface.wait_ready(local, "small", 60)
    wait_for(lambda: os.statvfs(small_disk).f_bavail == 0)
    time.sleep(2)  # more than a pipe holds
    assert found.supervisor.is_alive() and found.is_healthy()
    found.child.send(signal.SIGKILL)
    wait_for(lambda: not found.child.is_alive() and healthcheck.check(found.check, 2)[0])
    assert found.supervisor.is_alive()
    (small_disk / "filler").unlink()
    after = wait_for(lambda: (f := local.instance("small")) and f.starts == 2 and f.is_healthy() and f)
    wait_for(lambda: "bytes of output were dropped: " in logs.log_path("small").read_text())
    after.stop()
    assert local.instances() == []
