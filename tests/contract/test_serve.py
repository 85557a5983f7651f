"""The server as a process of its own: address, signals, failed loading, killed and restarted in mid-stream."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from fakes import observe

import vla_contract
from vla_common.healthcheck import main as healthcheck
from vla_contract import PolicyUnavailable, SessionLost
from vla_contract.server import auth
from vla_contract.server.auth import is_loopback, require_token_beyond_loopback
from vla_contract.server.engine import FAILURES
from vla_contract.server.serving import listen

PROGRAM = Path(__file__).with_name("slow_service.py")
SHARED = Path(__file__).parents[2] / "shared"
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{SHARED / 'common'}:{SHARED / 'contract'}"}


class Process:
    """A service in a process of its own; its log is read to the end by a thread."""

    def __init__(self, kind, port=0, seconds=0.0, *options):
        command = [sys.executable, str(PROGRAM), kind, str(port), str(seconds), *options]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL, env=ENVIRONMENT
        )
        self.log: list[str] = []
        self._address = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"listening on (http://\S+)", line):
                self.found = found[1]
                self._address.set()

    @property
    def url(self):
        assert self._address.wait(60), "".join(self.log)
        return self.found

    def end(self, sign=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(sign)
        return self.process.wait(30)


@pytest.fixture
def process():
    started = []

    def start(*arguments):
        started.append(Process(*arguments))
        return started[-1]

    yield start
    for one in started:
        one.end(signal.SIGKILL)
        one.process.stderr.close()


def test_the_log_names_the_address_and_sigterm_ends_it(process, client):
    service = process("slow")
    c = client(service.url)
    c.wait_ready(30)
    assert c.act(observe(step=2)).actions[0, 0] == 2
    assert service.end() in (0, -signal.SIGTERM)
    assert "Traceback" not in "".join(service.log)


def test_answers_do_not_wait_for_delayed_acknowledgements(process, client):
    """Head and body of an answer are two writes; without TCP_NODELAY each answer takes 40 ms longer."""
    listener = listen("127.0.0.1", 0)
    assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    with listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_request_that_runs_is_finished_before_the_end(process, client):
    service = process("slow", 0, 0.6)
    c = client(service.url, retries=0)
    c.wait_ready(30)
    results = []
    thread = threading.Thread(target=lambda: results.append(c.act(observe(step=9))))
    thread.start()
    deadline = time.monotonic() + 30
    while "step 9 begins\n" not in service.log:
        assert time.monotonic() < deadline, service.log
        time.sleep(0.01)
    service.end()
    thread.join(30)
    assert results[0].actions[0, 0] == 9


def test_a_failed_load_is_reported_and_ends_the_process(process, client):
    service = process("broken", 0, 0.5)
    with pytest.raises(PolicyUnavailable, match=r"RuntimeError: weights.safetensors is 3 bytes long"):
        client(service.url).wait_ready(30)
    assert httpx.get(service.url + "/readyz").json()["type"].endswith("load-failed")
    assert healthcheck([service.url]) == 1
    assert service.process.wait(30) == 1
    assert "Traceback" in "".join(service.log)


@pytest.mark.parametrize(("kind", "failures"), [("dying", 1), ("failing", FAILURES)])
def test_a_policy_that_does_not_answer_any_more_ends_the_process(process, client, kind, failures):
    service = process(kind)
    c = client(service.url, retries=0)
    c.wait_ready(30)
    for index in range(failures):
        with pytest.raises(PolicyUnavailable, match="policy raised RuntimeError"):
            c.act(observe(f"s{index}", instruction="die"))
    assert service.process.wait(30) == 1
    log = "".join(service.log)
    assert "does not answer any more" in log and "RuntimeError" in log


def test_a_lost_policy_is_not_ready_and_says_why(process, client):
    service = process("dying")
    c = client(service.url, retries=0)
    c.wait_ready(30)
    with pytest.raises(PolicyUnavailable):
        c.act(observe(instruction="die"))
    for _ in range(100):
        answer = httpx.get(service.url + "/readyz")
        if answer.status_code != 200:
            break
        time.sleep(0.01)
    assert (
        answer.status_code == 503 and answer.json()["type"].endswith("policy-lost") and "Retry-After" in answer.headers
    )
    assert "CUDA error: device-side assert" in answer.json()["detail"]


def test_requests_that_fail_by_themselves_end_nothing(process, client):
    service = process("dying")
    c = client(service.url, retries=0)
    c.wait_ready(30)
    for index in range(3 * FAILURES):
        with pytest.raises(PolicyUnavailable):
            c.act(observe(f"s{index}", instruction="bad"))
    assert c.act(observe(step=4)).actions[0, 0] == 4
    assert httpx.get(service.url + "/readyz").status_code == 200


def test_a_killed_server_may_come_back_in_mid_stream(process, client):
    service = process("slow")
    port = int(service.url.rsplit(":", 1)[1])
    c = client(service.url, deadline_s=60, retries=100)
    c.wait_ready(30)
    for step in range(40):
        if step in (10, 25):
            service.end(signal.SIGKILL)
            service = process("slow", port)  # comes up while the client is already trying again
        assert c.act(observe(step=step)).actions[0, 0] == step


def test_a_killed_server_loses_its_sessions_and_the_episode_begins_again(process, client):
    service = process("counting")
    port = int(service.url.rsplit(":", 1)[1])
    c = client(service.url, deadline_s=60, retries=100)
    c.wait_ready(30)
    assert [c.act(observe("a", step)).actions[0, 0] for step in range(3)] == [1, 2, 3]
    service.end(signal.SIGKILL)
    process("counting", port)
    with pytest.raises(SessionLost):
        c.act(observe("a", 3))
    assert [c.act(observe("a again", step)).actions[0, 0] for step in range(3)] == [1, 2, 3]


def test_a_taken_port_is_named(process):
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}.*choose another port"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "alone"),
    [
        ("127.0.0.1", True), ("127.0.0.53", True), ("::1", True), ("[::1]", True), ("localhost", True),
        ("0.0.0.0", False), ("::", False), ("192.168.1.7", False), ("lab.example.org", False), ("localhost.org", False),
    ],
)  # fmt: skip
def test_only_this_machine_reaches_loopback(host, alone, monkeypatch):
    assert is_loopback(host) == alone
    monkeypatch.setattr(auth, "CONTAINER_MARKS", (PROGRAM,))  # a file that exists: as if in a container
    monkeypatch.delenv("VLALAB_BIND", raising=False)
    require_token_beyond_loopback(host, "a long secret")
    if not alone:
        with pytest.raises(ValueError, match=f"{re.escape(host)}.*set VLALAB_TOKEN"):
            require_token_beyond_loopback(host, None)
    # a container listens on all addresses; where its port is published is what counts
    monkeypatch.setenv("VLALAB_BIND", host)
    if alone:
        require_token_beyond_loopback("0.0.0.0", "")
    else:
        with pytest.raises(ValueError, match="set VLALAB_TOKEN"):
            require_token_beyond_loopback("0.0.0.0", "")


@pytest.mark.parametrize(
    ("host", "bind", "refused"),
    [
        ("0.0.0.0", "127.0.0.1", "0.0.0.0"), ("::", "localhost", "::"), ("127.0.0.1", "0.0.0.0", "0.0.0.0"),
        ("127.0.0.1", "127.0.0.1", None), ("127.0.0.1", "", None), ("0.0.0.0", "", "0.0.0.0"),
    ],
)  # fmt: skip
def test_outside_a_container_no_variable_closes_what_the_host_opens(host, bind, refused, monkeypatch):
    monkeypatch.setattr(auth, "CONTAINER_MARKS", ())
    monkeypatch.setenv("VLALAB_BIND", bind)
    if refused is None:
        return require_token_beyond_loopback(host, None)
    with pytest.raises(ValueError, match=rf"{re.escape(refused)} .*--host 127.0.0.1"):
        require_token_beyond_loopback(host, None)


@pytest.mark.parametrize(("bind", "token", "starts"), [("0.0.0.0", "", False), ("0.0.0.0", "secret-123", True)])
def test_a_service_open_to_the_network_starts_with_a_token_only(bind, token, starts):
    code = (
        "import sys; from fakes import EchoPolicy; from vla_contract import serve; serve(EchoPolicy, port=0, token=%r)"
    )
    variables = {**ENVIRONMENT, "VLALAB_BIND": bind, "PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}:{PROGRAM.parent}"}
    command = [sys.executable, "-c", code % (token or None)]
    process = subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True)
    try:
        said = ""
        while "listening on" not in said and (line := process.stderr.readline()):
            said += line
        assert ("listening on" in said) == starts
        assert starts or "set VLALAB_TOKEN" in said
    finally:
        process.kill()
        process.communicate()


def test_the_health_check(service, capsys):
    from fakes import EchoPolicy

    url = service(EchoPolicy()).url
    assert healthcheck([url]) == 0 and healthcheck([url + "/livez"]) == 0 and healthcheck([url + "/readyz/"]) == 1
    assert "readyz: 200" in capsys.readouterr().out
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    for bad in (f"http://127.0.0.1:{port}", "nonsense", "http://", "http://127.0.0.1:port"):
        assert healthcheck([bad, "--timeout", "1"]) == 1


def imported(code, among, *flags):
    """Returns which modules of `among` are loaded after `code` ran in a fresh interpreter."""
    code = f"import sys; {code}; print([name for name in {among!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, *flags, "-c", code], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_health_check_needs_only_the_standard_library_and_little_of_it():
    dear = ["http.client", "email", "ssl", "json"]  # each takes as long as all the rest of a check
    assert imported("import vla_common.healthcheck", ["numpy", "fastapi", "httpx", *dear], "-S") == "[]"


@pytest.mark.parametrize("part", ["client", "protocol"])
def test_a_client_needs_no_server(part):
    """Whatever it imports of the client and the protocol."""
    directory = Path(vla_contract.__path__[0]) / part
    modules = sorted(f"vla_contract.{part}.{path.stem}" for path in directory.glob("*.py"))
    assert f"vla_contract.{part}.{'client' if part == 'client' else 'types'}" in modules
    server = ["vla_contract.server", "fastapi", "uvicorn", "starlette", "prometheus_client"]
    assert imported(f"import vla_contract.{part}, {', '.join(modules)}", server) == "[]"


def test_the_client_that_the_package_shows_needs_no_server_either():
    server = ["vla_contract.server", "fastapi", "uvicorn", "starlette", "prometheus_client"]
    assert imported("from vla_contract import PolicyClient, Observation", server) == "[]"


def test_every_name_exists():
    for name in vla_contract.__all__:
        assert getattr(vla_contract, name) is not None
    with pytest.raises(AttributeError, match="it has ActionChunk"):
        _ = vla_contract.Polciy
    assert imported("import vla_contract.server.app", ["torch", "tensorflow", "cv2"]) == "[]"
