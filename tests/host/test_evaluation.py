"""The walk of `eval`: names are checked first, the policy is chosen in words, signals and exit codes are passed on."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from vlalab.commands import distributed_eval, evaluation
from vlalab.commands.evaluation import EvaluationRequest, choose_policy, describe_signal, resume_line
from vlalab.description import compose
from vlalab.environments import venvs
from vlalab.host import paths, processes, state
from vlalab.host.console import LabError
from vlalab.host.processes import Identity, command, identify, supervise
from vlalab.runtimes import local

POLICIES = ["oracle", "random", "replay"]


def up(service: str, port: int) -> local.Instance:
    nobody = Identity(0, 0, "")
    return local.Instance(
        name=service, service=service, url=f"http://127.0.0.1:{port}", role="policy", attached=False,
        check="", check_timeout_s=1, stop_grace_s=1, started_at=0, supervisor=nobody, child=nobody, starts=1,
        last_exit=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "running", "url", "service", "said"),
    [
        ("auto", ["random"], "http://127.0.0.1:1", None, "policy random, running at"),
        ("auto", ["random", "replay"], "http://127.0.0.1:1", None, "replay also up"),
        ("auto", [], None, "oracle", "policy oracle, since no policy service is running"),
        ("replay", ["random", "replay"], "http://127.0.0.1:2", None, "policy replay, running at"),
        ("replay", ["random"], None, "replay", "policy replay"),
        ("http://gpu-box:8000/", ["oracle"], "http://gpu-box:8000", None, "policy at http://gpu-box:8000"),
    ],
)
def test_a_policy_is_selected_and_the_reason_is_told(text, running, url, service, said):
    instances = [up(name, port) for port, name in enumerate(running, 1)]
    choice = choose_policy(text, instances, POLICIES, "oracle")
    assert (choice.url, choice.service) == (url, service) and said in choice.reason


def test_the_oracle_that_the_pages_bring_is_replaced_to_another_policy(answering, monkeypatch):
    process, check = identify(os.getpid()), answering(200)
    there = [replace(up(name, 8001), check=check, child=process) for name in ("oracle", "random")]
    monkeypatch.setattr(evaluation.interface, "instances", lambda: there)
    assert evaluation.name_of_policy(EvaluationRequest("libero_goal")) == "random"
    del there[1]
    assert evaluation.name_of_policy(EvaluationRequest("libero_goal")) == "oracle"
    metaworld = EvaluationRequest("metaworld_mt10")
    assert evaluation.name_of_policy(metaworld) == "metaworld_oracle", "LIBERO's do not support it"


def test_a_websockets_address_is_a_bridges_to_start():
    flags = ("--act-timeout-s", "300.0", "--policy-timeout-s", "5.0")
    request = EvaluationRequest("libero_goal", "ws://host:8000", flags=flags).bridged()
    assert (request.policy, request.addresses, request.urls) == ("bridge", ["ws://host:8000"], [])
    assert dict(request.policy_variables) == {
        "VLALAB_BRIDGE_SERVER": "ws://host:8000",
        "VLALAB_BRIDGE_ANSWER_S": "300.0",
        "VLALAB_BRIDGE_WAIT_S": "5.0",
    }
    assert request.bridged() == request
    plain = EvaluationRequest("libero_goal", "http://host:8000")
    assert plain.bridged() == plain and plain.addresses == ["http://host:8000"]
    with pytest.raises(LabError, match="ws://host:0 is not"):
        EvaluationRequest("libero_goal", "ws://host:0").bridged()


@pytest.mark.parametrize(
    ("readyz", "act", "policy", "server"),
    [
        (404, 405, "bridge", "act://127.0.0.1:{port}/"),
        (404, 422, "bridge", "act://127.0.0.1:{port}/"),
        (404, 404, "http://127.0.0.1:{port}/", None),
        (503, 405, "http://127.0.0.1:{port}/", None),
        (200, 405, "http://127.0.0.1:{port}/", None),
    ],
)
def test_an_openvla_server_is_recognized_by_its_routes(readyz, act, policy, server):
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *words):
            pass

        def do_GET(self):
            self.send_response({"/readyz": readyz, "/act": act}[self.path])
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        flags = ("--unnorm-key", "bridge_orig")
        request = EvaluationRequest("libero_goal", f"http://127.0.0.1:{http.server_port}/", flags=flags).bridged()
        http.shutdown()
        thread.join(10)
    assert request.policy == policy.format(port=http.server_port)
    expected = {"VLALAB_BRIDGE_SERVER": server.format(port=http.server_port)} if server else {}
    assert dict(request.policy_variables) == expected | ({"VLALAB_BRIDGE_UNNORM_KEY": "bridge_orig"} if server else {})


def test_runs_of_several_suites_are_called_as_the_bridge_calls_its_policy(monkeypatch):
    request = EvaluationRequest("libero_goal", "ws://host:8000")
    assert evaluation.name_of_policy(request) == "bridge"
    assert '"${VLALAB_BRIDGE_NAME:-}"' in compose.FILE.read_text()
    monkeypatch.setenv("VLALAB_BRIDGE_NAME", "pi05")
    assert evaluation.name_of_policy(request) == "pi05"


def test_a_bridge_is_started_whatever_else_is_up():
    request = EvaluationRequest("libero_goal", "ws://127.0.0.1:8000").bridged()
    choice = evaluation._choice(request, local, [up("bridge", 8007)], [*POLICIES, "bridge"])
    assert (choice.service, choice.url) == ("bridge", None) and "ws://127.0.0.1:8000, through a bridge" in choice.reason
    with pytest.raises(LabError, match="a container cannot reach ws://127"):
        evaluation._choice(request, evaluation.containers, [], [*POLICIES, "bridge"])
    far = EvaluationRequest("libero_goal", "ws://gpu01:8000").bridged()
    assert evaluation._choice(far, evaluation.containers, [], [*POLICIES, "bridge"]).service == "bridge"


@pytest.mark.parametrize("name", ["oracle", "replay"])
def test_simulator_policy_is_rejected_for_recorded_data(name):
    request = EvaluationRequest(None, name, "local", ("--dataset", "cups"), module="services.libero.offline")
    with pytest.raises(LabError, match=f"'{name}' needs the simulator's state, .*gr00t"):
        evaluation.run(request, f"./lab offline {name} --dataset cups")


@pytest.mark.parametrize("code", [0, 1, 2, 130])
def test_the_exit_code_is_passed_on(code):
    assert supervise([sys.executable, "-c", f"raise SystemExit({code})"], {}) == code


def test_death_by_signal_becomes_its_shell_code():
    assert supervise([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], {}) == 137


HOST = """
import sys
from vlalab.host.processes import supervise
sys.exit(supervise([sys.executable, "-c", {code!r}], {{}}))
"""

COUNT = """
import signal, time
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
open({path!r}, "w").close()
end = time.monotonic() + 20
while not seen and time.monotonic() < end: time.sleep(0.02)
time.sleep(0.5)
raise SystemExit(40 + len(seen))
"""


def test_ctrl_c_reaches_the_evaluator_once(tmp_path):
    """A whole process group gets the signal, as from a terminal; the program below counts one."""
    ready = tmp_path / "ready"
    code = COUNT.format(path=str(ready))
    host = HOST.format(code=code)
    process = subprocess.Popen([sys.executable, "-c", host], start_new_session=True)

    def press() -> None:
        while not ready.exists():
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)

    threading.Thread(target=press).start()
    assert process.wait(timeout=90) == 41


def test_the_evaluator_does_not_outlive_the_host_tool(tmp_path):
    pid_file = tmp_path / "pid"
    code = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    host = HOST.format(code=code)
    process = subprocess.Popen([sys.executable, "-c", host])
    while not (pid_file.exists() and pid_file.read_text()):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 60
    while processes.stat_fields(int(pid_file.read_text()))[:1] not in ([], ["Z"]):
        assert time.monotonic() < deadline, "it outlives its caller"
        time.sleep(0.05)


# --- ended from outside -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("./lab eval libero_goal --trials 2", "./lab eval libero_goal --trials 2 --resume"),
        ("./lab eval libero_goal --resume a", "./lab eval libero_goal --resume a"),
        ("./lab eval libero_goal --run-id=a", "./lab eval libero_goal --run-id=a"),
    ],
)
def test_resume_command_line(typed, says):
    assert resume_line(typed) == says


def test_exit_codes_are_described():
    assert "out of memory" in describe_signal(137) and describe_signal(139) == "SIGSEGV"
    assert [describe_signal(code) for code in (0, 1, 2, 130, 128, 255)] == [""] * 6


def clone_eval(tmp_path, *words: str) -> subprocess.Popen:
    """`./lab eval` over the real oracle and evaluator, on a volume of its own; its output is read line by line."""
    variables = {**os.environ, "VLALAB_VOLUME": str(tmp_path / "volume"), "PYTHONUNBUFFERED": "1"}
    command = [str(paths.ROOT / "lab"), "eval", "libero_goal", "--runtime", "local", "--workers", "1", *words]
    return subprocess.Popen(command, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def process_of(module: str, parent: int) -> int:
    """Returns the process that runs a module, among the descendants of another one."""
    for directory in Path("/proc").iterdir():
        if (
            directory.name.isdigit()
            and module in command(int(directory.name))
            and parent in ancestors(int(directory.name))
        ):
            return int(directory.name)
    raise AssertionError(f"{module} does not run")


def ancestors(pid: int) -> list[int]:
    found = []
    while fields := processes.stat_fields(pid):
        found.append(pid := int(fields[1]))
    return found


needs_libero = pytest.mark.skipif(
    not venvs.get("libero").is_ready(), reason="the environment libero is not set up: ./lab env libero"
)


@pytest.mark.parametrize(
    ("victim", "says"),
    [
        ("services.libero", "the evaluator was killed by SIGKILL"),
        ("vlalab.runtimes.supervisor", "exited and is not restarted; this run was stopped"),
    ],
)
@needs_libero
def test_killed_evaluator_is_reported_with_the_resume_command(tmp_path, victim, says):
    with clone_eval(tmp_path, "--tasks", "0", "--trials", "30") as process:
        begun = next((line for line in process.stdout if line.startswith("libero_goal: 1 task")), "")
        assert begun, "the evaluation did not begin"
        os.kill(process_of(victim, process.pid), signal.SIGKILL)
        output = process.communicate(timeout=120)[0]  # it used to be ten minutes
    assert says in output and "--trials 30 --resume" in output and "Traceback" not in output
    assert process.returncode == (137 if "libero" in victim else 1)
    assert not list(state.directory("logs", "private").iterdir())


DRY = {"workers": None, "assets": None, "runtime": "auto", "dry_run": True, "gpu": "none"}


def test_who_joins_takes_the_job_of_the_runs_benchmark_where_the_evaluator_listens(capsys):
    """Its address is this machine's own, so a container would not reach it, whatever the evaluator runs in."""
    told = {"job": {"benchmark": "services.metaworld.benchmark"}, "runtime": "docker"}
    with answering(json.dumps(told).encode()) as url:
        assert distributed_eval.join(url, "auto", {**DRY, "workers": 2}) == 0
    printed = capsys.readouterr()
    assert f"-m services.metaworld join {url} --workers 2" in printed.out and "runtime local" in printed.err


@pytest.mark.parametrize("said", [b"no JSON", b"[]", b'{"job": 3}'], ids=repr)
def test_joining_another_service_is_reported_by_the_program(said, capsys):
    with answering(said) as url:
        assert distributed_eval.join(url, "auto", DRY) == 0
    assert f"-m services.libero join {url}" in capsys.readouterr().out


def test_a_token_is_sent_to_the_address_that_was_given_and_to_no_other(monkeypatch):
    monkeypatch.setenv("VLALAB_TOKEN", "for-these-tests")
    with answering(b'{"job": {}}') as elsewhere, answering(b"", status=302, Location=f"{elsewhere}/v1/run") as url:
        assert distributed_eval.fetch_run(elsewhere) == {"job": {}}
        assert distributed_eval.fetch_run(url) == {}


@contextlib.contextmanager
def answering(body: bytes, status: int = 200, **headers: str):
    """Yields the address of a server that answers every GET with that body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
