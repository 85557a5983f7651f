"""The client against servers that refuse, stall, vanish and come back."""

import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from fakes import CountingPolicy, EchoPolicy, SlowPolicy, observe

from tests.ports import refusing
from vla_contract import PolicyClient, PolicyRefused, PolicyUnavailable, SessionLost
from vla_contract.client import transport
from vla_contract.client.transport import backoff_s
from vla_contract.protocol.messages import encode_chunk


@pytest.fixture
def scripted():
    """Returns a function that starts a server giving the scripted answers in turn, then 200; `seen` keeps headers."""
    servers = []

    def start(*script, seen=None):
        answers = list(script)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                if seen is not None:
                    seen.append((time.monotonic(), {**self.headers, ":path": self.path}))
                status, headers, body = answers.pop(0) if answers else (200, {}, GOOD)
                if status == 0:  # break off without an answer
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


GOOD = encode_chunk(EchoPolicy().answer(observe()))
TRANSIENT = [(status, {}, b"busy") for status in (408, 429, 502, 503, 504)]


@pytest.mark.parametrize("answer", [*TRANSIENT, (0, {}, b"")], ids=lambda a: str(a[0]))
def test_transient_faults_are_tried_again_under_one_request_id(scripted, client, answer):
    seen = []
    chunk = client(scripted(answer, answer, seen=seen)).act(observe())
    assert chunk.actions.shape == (1, 7)
    assert len(seen) == 3 and len({headers["X-Request-Id"] for _, headers in seen}) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 415, 422, 301])
def test_refusals_are_final(scripted, client, status):
    seen = []
    with pytest.raises(PolicyRefused, match=str(status)) as caught:
        client(scripted((status, {}, b'{"detail": "the reason"}'), seen=seen)).act(observe())
    assert "the reason" in str(caught.value) and caught.value.problem == {"detail": "the reason"} and len(seen) == 1
    assert ("set VLALAB_TOKEN" in str(caught.value)) == (status == 401)


@pytest.mark.parametrize(("status", "kind"), [(500, PolicyUnavailable), (409, SessionLost)])
def test_the_episode_must_begin_again(scripted, client, status, kind):
    seen = []
    with pytest.raises(kind) as caught:
        client(scripted((status, {}, b"[]"), seen=seen)).act(observe())
    assert caught.value.status == status and len(seen) == 1


@pytest.mark.parametrize("body", [b"", b"error", b'"error"', b"\x81\xa7actions\xc0", b"\x90"])
def test_200_alone_makes_no_action(scripted, client, body):
    with pytest.raises(PolicyUnavailable, match="invalid action chunk"):
        client(scripted((200, {}, body))).act(observe())


@pytest.mark.parametrize(
    ("headers", "body", "pause_s"),
    [
        ({"Retry-After": "1"}, b"", 1.0),
        ({"Retry-After": "1"}, b'{"retry_after_s": 0.2}', 0.2),
        ({"Retry-After": "Fri, 20 Nov 2026 10:12:04 GMT"}, b"", 0.0),
        ({"Retry-After": "-3"}, b'{"retry_after_s": "x"}', 0.0),
    ],
)
def test_the_server_says_when_to_come_back(scripted, client, headers, body, pause_s, monkeypatch):
    seen = []
    monkeypatch.setattr(transport, "FIRST_PAUSE_S", 0.0)
    client(scripted((429, headers, body), seen=seen)).act(observe())
    assert seen[1][0] - seen[0][0] >= pause_s


def test_a_pause_past_the_deadline_is_not_begun(scripted, client):
    with pytest.raises(PolicyUnavailable, match=r"429.*\(1 tries"):
        client(scripted((429, {"Retry-After": "30"}, b"")), deadline_s=2.0).act(observe())


def test_tries_are_counted(scripted, client):
    seen = []
    with pytest.raises(PolicyUnavailable, match=r"503.*3 tries") as caught:
        client(scripted(*[(503, {}, b"")] * 9, seen=seen), retries=2).act(observe())
    assert len(seen) == 3 and caught.value.status == 503


def test_backoff_grows_with_jitter_and_stays_bounded():
    for attempt in range(2000):
        assert 0 <= backoff_s(attempt) <= min(5.0, 0.05 * 2**attempt if attempt < 60 else 5.0)
    assert len({backoff_s(3) for _ in range(20)}) > 10
    assert backoff_s(0, 5.0) >= 5.0
    with pytest.raises(ValueError, match="retries"):
        PolicyClient("http://127.0.0.1:1", retries=-1)


def test_nobody_there(client):
    with refusing() as nobody, pytest.raises(PolicyUnavailable, match=r"Connection refused.*3 tries"):
        client(nobody, retries=2).act(observe())


def test_a_slow_policy_meets_the_deadline(service, client):
    url = service(SlowPolicy(0.4)).url
    assert client(url).act(observe()).actions.shape == (1, 7)
    with pytest.raises(PolicyUnavailable, match=r"no answer within 0\.\d+ s \(\d tries"):  # of 21 without a deadline
        client(url, timeout_s=0.1, deadline_s=0.3, retries=20).act(observe())


def test_a_try_that_times_out_is_repeated(service, client):
    policy = SlowPolicy(0.0)
    url = service(policy).url
    policy.seconds = 0.5
    threading.Timer(0.2, lambda: setattr(policy, "seconds", 0.0)).start()
    assert client(url, timeout_s=0.3, deadline_s=10).act(observe(step=6)).actions[0, 0] == 6


def test_a_stateful_policy_is_not_moved_twice_by_a_repeat(service, client):
    class Slow(CountingPolicy):
        def act(self, observations):
            time.sleep(0.5 if observations[0].step == 1 else 0)
            return super().act(observations)

    c = client(service(Slow()).url, timeout_s=0.3, deadline_s=10)
    assert [c.act(observe("a", step)).actions[0, 0] for step in range(4)] == [1, 2, 3, 4]


def test_waiting_until_ready(service, client):
    release, said = threading.Event(), []

    def load():
        release.wait(20)
        return EchoPolicy()

    url = service(load, wait=False).url
    threading.Timer(1.3, release.set).start()
    client(url).wait_ready(20, on_wait=lambda seconds, reason: said.append((seconds, reason)))
    assert 1 <= len(said) <= 4 and "weights are being loaded" in said[0][1]
    assert all("weights are" in reason for _, reason in said)  # a slow machine sees the first inference, too
    assert said == sorted(said)


def test_waiting_ends(service, client):
    release = threading.Event()
    url = service(lambda: release.wait(20) and EchoPolicy(), wait=False).url
    with pytest.raises(PolicyUnavailable, match=r"not ready after 0.5 s: .*being loaded"):
        client(url).wait_ready(0.5)
    with refusing() as nobody, pytest.raises(PolicyUnavailable, match=r"not ready after 0.3 s: .*refused"):
        client(nobody).wait_ready(0.3)
    release.set()


def test_other_servers_are_recognised(scripted, client):
    class Html(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "20")
            self.end_headers()
            self.wfile.write(b"<html>welcome</html>")

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Html)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with pytest.raises(PolicyRefused, match="invalid PolicyInfo"):
        client(f"http://127.0.0.1:{server.server_port}").info()
    server.shutdown(), server.server_close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8001",
        "ftp://x",
        "http://",
        "localhost",
        "http://x:port",
        "http://x:0",
        "http://a b",
        "http://u:p@x",
        "http://x/?q",
        "http://[::1",
        "http://..",
        "http://x\n",
        None,
    ],
)
def test_bad_addresses_are_named(url):
    with pytest.raises(ValueError, match="expected for example"):
        PolicyClient(url)


@pytest.mark.parametrize(
    "setting", [{"token": "new\nline"}, {"token": "ü"}, {"timeout_s": 0}, {"deadline_s": -1}, {"retries": -1}]
)
def test_bad_settings_are_named(setting):
    with pytest.raises(ValueError, match=next(iter(setting))):
        PolicyClient("http://127.0.0.1:1", **setting)


def test_threads_may_share_a_client(service, client):
    from test_batching import together

    c = client(service(EchoPolicy()).url)
    results = together(8, lambda i: [c.act(observe(f"s{i}", step)).actions[0, 0] for step in range(10)])
    assert results == [list(range(10))] * 8


def connections(monkeypatch):
    """Returns a list that every new connection's local port is added to."""
    opened = []
    connect = http.client.HTTPConnection.connect

    def note(self):
        connect(self)
        opened.append(self.sock.getsockname()[1])

    monkeypatch.setattr(http.client.HTTPConnection, "connect", note)
    return opened


def test_connections_are_kept(service, client, monkeypatch):
    url = service(EchoPolicy()).url
    opened = connections(monkeypatch)
    c = client(url)
    for step in range(20):
        c.act(observe(step=step))
    assert len(opened) == 1


def test_a_connection_closed_meanwhile_is_replaced_at_once(scripted, client, monkeypatch):
    """No pause, no try counted: closing an idle connection is the server's right."""
    opened = connections(monkeypatch)
    c = client(scripted((200, {}, GOOD), (0, {}, b""), (200, {}, GOOD)), retries=0)
    c.act(observe()), c.act(observe())
    assert len(opened) == 2


def test_old_connections_are_not_used(service, client, monkeypatch):
    import vla_contract.client.transport as transport

    c = client(service(EchoPolicy()).url)
    opened = connections(monkeypatch)
    monkeypatch.setattr(transport, "KEEP_S", 0.0)
    c.act(observe()), c.act(observe())
    assert len(opened) == 2


FORK = """
import os, sys
from fakes import observe
from vla_contract import PolicyClient

client = PolicyClient(sys.argv[1])
assert client.act(observe(step=1)).actions[0, 0] == 1
child = os.fork()
for step in range(50):  # both at once, over what was one connection
    assert client.act(observe(str(child), step)).actions[0, 0] == step
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_fork_does_not_share_connections(service):
    here = Path(__file__).parent
    shared = here.parents[1] / "shared"
    path = os.pathsep.join(map(str, (here, shared / "common", shared / "contract")))
    command = [sys.executable, "-c", FORK, service(EchoPolicy()).url]
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False, timeout=60)
    assert ended.returncode == 0


def test_the_address_may_have_a_path(scripted, client):
    seen = []
    assert client(scripted(seen=seen) + "/lab/policy/").act(observe()).actions.shape == (1, 7)
    assert seen[0][1][":path"] == "/lab/policy/v1/act"


def test_endless_answers_are_cut(scripted, client, monkeypatch):
    import vla_contract.client.transport as transport

    monkeypatch.setattr(transport, "MAX_ANSWER", 1000)
    with pytest.raises(PolicyUnavailable, match="IncompleteRead"):
        client(scripted((200, {}, b"\x81\xa7actions" + b"\x00" * 5000)), retries=0).act(observe())


def test_proxies_from_the_environment_are_not_asked(service, client, monkeypatch):
    with refusing() as nobody:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, nobody)
        c = client(service(EchoPolicy()).url)
        c.wait_ready(5)
        assert c.act(observe()).actions.shape == (1, 7)
