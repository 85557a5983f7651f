"""The page's steward: a real process behind its socket, which starts and stops real services by the lab's commands."""

import json
import os
import stat
import time
from http.client import HTTPConnection
from pathlib import Path
from socket import AF_UNIX, SOCK_STREAM, socket
from threading import Thread

import pytest

from tests.ports import free_ports
from vlalab import control_daemon as daemon
from vlalab.commands import evaluation
from vlalab.control_daemon import ControlDaemon, RequestError
from vlalab.description import compose, manifests
from vlalab.environments import venvs
from vlalab.host import paths, secrets
from vlalab.runtimes import control, interface, local, logs, state_files

SECRET = "Tr0ub4dor-and-3"
LAB = """#!/bin/sh
cd "$(dirname "$0")"
echo "$*" >> asked/all
case "$1" in
status) echo '{"services": [], "said": "password=SECRET", "api_key": "SECRET"}';;
doctor) echo '{"checks": [], "verdict": "usable"}'; exit 1;;
logs) printf 'VLALAB_TOKEN=SECRET\\nready\\n';;
*) while [ -e "asked/hold-$2" ]; do sleep 0.02; done
   [ ! -e "asked/fail-$2" ] || { echo "lab: cannot load the weights; --token SECRET" >&2; exit 1; }
   echo "$2 is done";;
esac
"""
SERVICE = Path(__file__).with_name("small_service.py")
ROUTES = [("GET", "/status"), ("GET", "/doctor"), ("POST", "/doctor"), ("GET", "/services/small/log"),
          *(("POST", f"/services/small/{verb}") for verb in daemon.VERBS), ("POST", "/runs/first"),
          ("POST", "/runs/goal-1/resume"), ("GET", "/runs/goal-1/action"), ("POST", "/runs/goal-1/delete"),
          ("POST", "/data/goal-set/check"), ("GET", "/data/goal-set/action")]  # fmt: skip
NAMES = ("nobody", "", "..", "%2e%2e", "../oracle", "--help", "oracle;id", "$(id)", "oracle%20", "libero", "x" * 5000)


class Asked(HTTPConnection):
    """A connection to a steward in one folder; `ask` returns status and JSON."""

    def __init__(self, directory: Path, secret: str | None = None):
        super().__init__("steward", timeout=60)
        self._directory, self._secret = directory, (directory / "secret").read_text() if secret is None else secret

    def connect(self) -> None:
        self.sock = socket(AF_UNIX, SOCK_STREAM)
        self.sock.settimeout(60)
        opened = os.open(self._directory, os.O_PATH)
        try:
            self.sock.connect(f"/proc/self/fd/{opened}/socket")
        finally:
            os.close(opened)

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict]:
        try:
            self.request(method, path, headers={"Authorization": f"Bearer {self._secret}"} | headers)
            answer = self.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            self.close()


def wait_for(condition, seconds: float = 90.0):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return value


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A clone whose `lab` says what it was called with, and does what a file named after the service says."""
    root = tmp_path_factory.mktemp("a clone") / "lab"
    root.parent.joinpath("asked").mkdir()
    root.write_text(LAB.replace("SECRET", SECRET))
    root.chmod(0o755)
    return root.parent


@pytest.fixture
def served(clone, tmp_path, monkeypatch):
    """A steward over that clone, behind a real socket; gives its folder."""
    monkeypatch.setattr(paths, "ROOT", clone)
    monkeypatch.chdir(tmp_path)
    (clone / "asked" / "all").write_text("")
    with daemon.ControlServer("socket", ControlDaemon("local"), SECRET + "-of-it") as server:
        (tmp_path / "secret").write_text(SECRET + "-of-it")
        Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        yield tmp_path
        server.shutdown()


def asked_of(clone: Path) -> list[str]:
    return (clone / "asked" / "all").read_text().splitlines()


def action_of(served: Path, name: str) -> dict:
    return next(one for one in Asked(served).ask("/status")[1]["actions"] if one["service"] == name)


def ended(served: Path, name: str) -> dict:
    return wait_for(lambda: (one := action_of(served, name))["ended"] and one)


# --- who and what is let in ---------------------------------------------------------------------------------


def test_no_route_answers_without_its_secret(served, clone):
    for secret in ("", "another", SECRET):
        for method, path in ROUTES:
            assert Asked(served, secret).ask(path, method) == (401, {"detail": "wrong secret"})
    assert asked_of(clone) == []


def test_only_a_service_of_compose_yaml_reaches_a_command(served, clone):
    """A job is none of them."""
    for name in NAMES:
        for method, what in (("POST", "start"), ("POST", "stop"), ("POST", "audit"), ("GET", "log")):
            status, told = Asked(served).ask(f"/services/{name}/{what}", method)
            assert status == 404 and len(told["detail"]) < 600, name
    assert asked_of(clone) == []


def test_there_are_not_an_other_routes(served, clone):
    for method, path in (
        ("GET", "/services/oracle/start"), ("POST", "/services/oracle/log"), ("POST", "/services/oracle/shell"),
        ("POST", "/status"), ("GET", "/"), ("GET", "/services/oracle/start/x"), ("POST", "/./services/oracle/start"),
        ("POST", "/services/oracle/start?x=1"),
    ):  # fmt: skip
        assert Asked(served).ask(path, method)[0] == 404, path
    assert asked_of(clone) == []


def test_request_body_is_rejected(served, clone):
    for announced in ({"Content-Length": "100000"}, {"Transfer-Encoding": "chunked"}):
        assert Asked(served).ask("/services/oracle/start", "POST", **announced)[0] == 413
    assert asked_of(clone) == []


def test_the_page_does_not_stop_itself(served, clone):
    for what in ("start", "stop"):
        status, told = Asked(served).ask(f"/services/ui/{what}", "POST")
        assert status == 409 and "./lab down ui" in told["detail"]
    assert asked_of(clone) == []


def test_a_notebook_outside_a_container_is_a_shell_and_is_not_started(served, clone):
    for name in manifests.notebooks().values():
        status, told = Asked(served).ask(f"/services/{name}/start", "POST")
        assert status == 409 and f"./lab up {name}" in told["detail"]
    assert asked_of(clone) == []


def test_a_service_that_must_fail_is_not_started_and_the_status_says_why(served, clone):
    for name, what in (("gr00t", "./lab checkpoint gr00t"), ("bridge", "VLALAB_BRIDGE_SERVER="),
                       ("minivla", "./lab train minivla")):  # fmt: skip
        status, told = Asked(served).ask(f"/services/{name}/start", "POST")
        assert status == 409 and what in told["detail"]
        assert Asked(served).ask("/status")[1]["obstacles"][name] == told["detail"]
    assert [line for line in asked_of(clone) if line.startswith("up")] == []


# --- what it does -------------------------------------------------------------------------------------------


def test_what_a_page_can_do_a_command_can_do(served, clone):
    """Each is the command that a person types, in the page's own runtime; nothing else is run."""
    assert Asked(served).ask("/services/oracle/start", "POST")[1]["code"] is None
    assert ended(served, "oracle")["output"] == "oracle is done\n"
    Asked(served).ask("/services/oracle/stop", "POST")
    wait_for(lambda: action_of(served, "oracle")["what"] == "stop" and action_of(served, "oracle")["ended"])
    Asked(served).ask("/services/openvla/audit", "POST")
    assert ended(served, "openvla")["what"] == "audit"
    acted = [line for line in asked_of(clone) if not line.startswith("status")]
    assert acted == ["up oracle --runtime local", "down oracle", "audit openvla --runtime local"]


SUITES, POLICIES = manifests.suites(), evaluation.policies()  # of this clone, not of the one that is served
IDENTITY = {
    "suite": "libero_goal", "policy": {"name": "oracle"}, "assets": {"kind": "kit"}, "profile": "openvla", "seed": 0,
    "max_steps": 300, "execute": None, "unnorm_key": None, "tasks": [0, 2], "episodes": "0-4",
}  # fmt: skip


@pytest.fixture
def run(monkeypatch, tmp_path):
    """A run on a volume; returns its directory."""
    monkeypatch.setattr(paths, "volume", lambda: tmp_path / "volume")
    monkeypatch.setattr(manifests, "suites", lambda: SUITES)
    monkeypatch.setattr(evaluation, "policies", lambda: POLICIES)
    directory = tmp_path / "volume/runs/goal-1"
    directory.mkdir(parents=True)
    (directory / "run.sqlite").touch()
    (directory / "config.json").write_text(json.dumps(IDENTITY))
    return directory


def test_a_run_is_resumed_with_its_settings_and_deleted(run, served, clone):
    assert Asked(served).ask("/runs/goal-1/action") == (200, {})
    assert Asked(served).ask("/runs/goal-1/resume", "POST")[0] == 200
    ended(served, "run goal-1")
    assert Asked(served).ask("/runs/goal-1/action")[1]["code"] == 0
    status, told = Asked(served).ask("/runs/goal-1/delete", "POST")
    assert status == 409 and "ended with code" in told["detail"], "that command did not delete it"
    assert [line for line in asked_of(clone) if not line.startswith("status")] == [
        "eval libero_goal --policy oracle --profile openvla --seed 0 --max-steps 300 --episodes 0-4 --tasks 0,2"
        " --assets kit --resume goal-1",
        "runs --delete goal-1 --yes",
    ]


def test_a_data_set_is_checked_by_name(run, served, clone):
    for name in ("goal-set", "--help"):  # a container may have made the second one
        (run.parents[1] / "datasets" / name / "meta").mkdir(parents=True)
    assert {Asked(served).ask(f"/data/{name}/check", "POST")[0] for name in NAMES} == {404}
    assert Asked(served).ask("/data/goal-set/check", "POST")[0] == 200
    ended(served, "data goal-set")
    assert Asked(served).ask("/data/goal-set/action")[1]["code"] == 0
    assert [line for line in asked_of(clone) if not line.startswith("status")] == ["dataset goal-set --check"]


@pytest.mark.parametrize(
    "change",
    [
        {"suite": "--help"},
        {"policy": {"name": "http://evil"}},
        {"episodes": "--workers"},
        {"tasks": ["--x"]},
        {"seed": "1 2"},
    ],
)
def test_settings_of_a_run_that_are_none_reach_no_command(run, served, clone, change):
    """A container may write them."""
    (run / "config.json").write_text(json.dumps({**IDENTITY, **change}))
    assert Asked(served).ask("/runs/goal-1/resume", "POST")[0] == 409
    assert {Asked(served).ask(f"/runs/{name}/delete", "POST")[0] for name in NAMES} == {404}
    assert asked_of(clone) == []


def test_one_action_at_a_time_for_a_service(served, clone):
    hold = clone / "asked" / "hold-oracle"
    hold.touch()
    try:
        assert Asked(served).ask("/services/oracle/start", "POST")[0] == 200
        for what in ("start", "stop"):
            status, told = Asked(served).ask(f"/services/oracle/{what}", "POST")
            assert status == 409 and "oracle is busy" in told["detail"]
        assert action_of(served, "oracle")["ended"] is None
    finally:
        hold.unlink()
    assert ended(served, "oracle")["code"] == 0
    assert [line for line in asked_of(clone) if line.startswith(("up", "down"))] == ["up oracle --runtime local"]


def test_so_many_actions_at_once_and_no_more(monkeypatch):
    desk, names = ControlDaemon("local"), daemon.lifecycle.long_lived()
    monkeypatch.setattr(desk, "_act", lambda action, arguments: None)  # which does not end
    others = [name for name in names if name != compose.PAGE and name not in desk.answer("GET", "/status")["obstacles"]]
    for name in others[: daemon.MAX_ACTIONS]:
        desk.answer("POST", f"/services/{name}/start")
    with pytest.raises(RequestError, match="wait until one is done") as refused:
        desk.answer("POST", f"/services/{others[daemon.MAX_ACTIONS]}/start")
    assert refused.value.status == 429


def test_failure_reports_output_without_secrets(served, clone, capfd):
    fail = clone / "asked" / "fail-oracle"
    fail.touch()
    try:
        Asked(served).ask("/services/oracle/start", "POST")
        told = ended(served, "oracle")
    finally:
        fail.unlink()
    assert told["code"] == 1 and told["output"] == f"lab: cannot load the weights; --token {secrets.HIDDEN}\n"
    assert SECRET not in wait_for(lambda: (said := capfd.readouterr().err) and "code 1" in said and said)


def test_logs_and_tables_come_without_secrets(served):
    assert Asked(served).ask("/services/oracle/log") == (200, {"log": f"VLALAB_TOKEN={secrets.HIDDEN}\nready\n"})
    status = Asked(served).ask("/status")[1]["status"]
    assert status["said"] == f"password={secrets.HIDDEN}" and status["api_key"] == secrets.HIDDEN


def test_doctor_runs_on_request_and_its_report_is_cached(served, clone):
    assert Asked(served).ask("/doctor")[1] == {"running": False, "at": None, "told": None, "error": ""}
    assert Asked(served).ask("/doctor", "POST")[1]["running"] is True
    told = wait_for(lambda: (one := Asked(served).ask("/doctor")[1])["at"] and one)
    assert told["told"]["verdict"] == "usable" and not told["running"] and not told["error"]
    assert asked_of(clone) == ["doctor --json --offline"]


# --- its life -----------------------------------------------------------------------------------------------


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A service that stands for the page, described as it is; gives it, started."""
    directory = tmp_path / "images" / "tiny"
    (directory / ".venv" / "bin").mkdir(parents=True)
    (directory / ".venv" / "bin" / "python").symlink_to(Path(os.sys.executable))
    (directory / "requirements.lock").write_text("# nothing\n")
    (port,) = free_ports(1)
    body = {
        "x-local": "tiny",
        "command": ["python", str(SERVICE), "--host", "127.0.0.1", "--port", str(port)],
        "environment": {"DATA": "/run/steward", "VLALAB_TOKEN": "${VLALAB_TOKEN:-}"},
        "volumes": [{"type": "bind", "source": "${VLALAB_STEWARD_FOLDER:-/dev/null}", "target": "/run/steward"}],
        "ports": [f"${{VLALAB_BIND:-127.0.0.1}}:{port}:{port}"],
        "healthcheck": {"test": ["CMD", "python", "-m", "vla_common.healthcheck", f"http://127.0.0.1:{port}/readyz"]},
    }
    monkeypatch.setattr(venvs, "ensure", lambda name: venvs.LocalEnvironment(name, directory))
    monkeypatch.setattr(compose, "FILE", tmp_path / "compose.yaml")
    compose.FILE.write_text(json.dumps({"services": {"ui": body}}))
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "volume"))
    monkeypatch.delenv(control.OFF, raising=False)
    yield lambda: local.start("ui", control.variables("ui"))
    control.stop()
    for found in local.instances():
        found.stop()


def answers() -> bool:
    try:
        return Asked(control.directory()).ask("/services/nobody/log")[0] == 404
    except OSError:
        return False


def test_it_comes_with_the_page_is_the_callers_alone_and_goes_with_it(page, monkeypatch):
    monkeypatch.setenv("VLALAB_TOKEN", "0123456789")
    found = page()
    assert f"folder {control.directory()}" in wait_for(lambda: "folder" in found.log_tail() and found.log_tail())
    control.start(found)
    wait_for(answers)
    there = control.running_daemon()
    private = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in control.directory().iterdir()}
    assert private == {"socket": 0o600, "secret": 0o600}
    assert stat.S_IMODE(control.directory().parent.stat().st_mode) == 0o700
    assert [instance.name for instance in interface.instances()] == ["ui"], "it is no service"
    control.start(found)
    assert control.running_daemon().child == there.child, "the same page keeps it"
    monkeypatch.setenv(control.ACTING, "1")
    control.stop()
    assert control.running_daemon(), "a command of its own leaves it alone"
    monkeypatch.delenv(control.ACTING)
    before = (control.directory() / "secret").read_text()
    monkeypatch.setenv("VLALAB_TOKEN", "9876543210")
    found.stop()
    control.start(page())
    wait_for(answers)
    assert control.running_daemon().supervisor != there.supervisor, "another token is another steward"
    assert (control.directory() / "secret").read_text() != before
    assert before not in logs.log_path(control.NAME).read_text()
    control.stop()
    assert control.running_daemon() is None and not (control.directory() / "socket").exists()


def test_it_can_be_switched_off_and_comes_back_when_it_was_killed(page, monkeypatch):
    found = page()
    control.start(found)
    wait_for(answers)
    first = control.running_daemon()
    first.child.send(9)
    wait_for(lambda: (one := control.running_daemon()) and one.starts == 2 and answers())
    monkeypatch.setenv(control.OFF, "off")
    control.start(found)
    assert control.running_daemon() is None and not first.supervisor.is_alive()
    assert state_files.instance("ui"), "the page stays"
