"""Slow, large and many: raw sockets against a service in a process of its own."""

import json
import resource
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from fakes import observe
from test_app import HEAD, exchange
from test_serve import process  # noqa: F401

from vla_contract.protocol.act_json import to_json

LIMITS = ("--head-s", "1", "--heads", "40", "--connections", "120", "--request-s", "2")
TRICKLE = 0.3  # seconds between two bytes


@pytest.fixture
def served(process, client):  # noqa: F811
    """Returns a function that starts a small service with close limits and waits for it."""

    def start(*arguments):
        service = process("slow", 0, 0.0, *LIMITS, *arguments)
        client(service.url).wait_ready(60)
        return service

    return start


def connect(url):
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), 20)


def rest(raw):
    """Returns what comes until the server closes: head and body of an answer may come apart."""
    raw.settimeout(10)
    data = b""
    with suppress(OSError):
        while piece := raw.recv(65536):
            data += piece
    return data


def answer_to_trickle(url, head, forever, pause_s=TRICKLE):
    """Returns what the server answers to a head and then one byte at a time, and how long it listened."""
    start = time.monotonic()
    with connect(url) as raw:
        raw.sendall(head)
        raw.settimeout(pause_s)
        while time.monotonic() - start < 60:
            try:
                raw.sendall(forever)
                data, spent_s = raw.recv(65536), time.monotonic() - start
                return data + rest(raw), spent_s
            except TimeoutError:
                continue
            except ConnectionError:
                return b"", time.monotonic() - start
    raise AssertionError("the server listened for a minute")


def alive(url, count=3):
    """Asks the probe on new connections."""
    for _ in range(count):
        assert httpx.get(url + "/livez", timeout=10).status_code == 200


def test_a_body_that_never_ends_is_given_up(served):
    url = served().url
    answer, _ = answer_to_trickle(url, HEAD + b"Content-Length: 90000\r\n\r\n", b"x")
    assert answer.startswith(b"HTTP/1.1 408") and b"slow-request" in answer
    alive(url)


@pytest.mark.parametrize("head", [b"", b"GET /livez HTTP/1.1\r\nX-Slow: "], ids=["first line", "a header"])
def test_a_head_that_never_ends_is_given_up(served, head):
    url = served().url
    answer, _ = answer_to_trickle(url, head + b"G", b"x")
    assert not answer or answer.startswith((b"HTTP/1.1 408", b"HTTP/1.1 400"))
    alive(url)


def test_a_slow_head_leaves_less_time_for_the_body(served):
    url = served("--head-s", "60").url
    head = HEAD + b"X-Slow: "
    with connect(url) as raw:
        raw.sendall(head)
        for _ in range(6):
            time.sleep(TRICKLE)
            raw.sendall(b"x")
        raw.sendall(b"\r\nContent-Length: 9000\r\n\r\nabc")
        began = time.monotonic()
        assert raw.recv(65536).startswith(b"HTTP/1.1 408")
        assert time.monotonic() - began < 1.5  # of 2 s for all, 1.8 were spent on the head


@pytest.mark.parametrize("large", [b"X-Large: " + b"x" * 2**20, b"X: y\r\n" * 20_000], ids=["one", "many"])
def test_a_large_head_is_refused_before_it_is_there(served, large):
    url = served().url
    with connect(url) as raw:
        try:
            raw.sendall(b"GET /livez HTTP/1.1\r\n" + large)
            answer = raw.recv(65536)
        except ConnectionError:
            answer = b""
    assert not answer or answer.startswith(b"HTTP/1.1 431")
    alive(url)


def test_a_head_a_little_too_large_is_told_so(served):
    answer = exchange(served().url, b"GET /livez HTTP/1.1\r\nX-Large: " + b"x" * 40_000 + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 431") and json.loads(answer.partition(b"\r\n\r\n")[2])["status"] == 431


@pytest.mark.parametrize("sent", [b"", b"GET /livez HTTP/1.1\r\nX-Slow: "], ids=["nothing", "half a head"])
def test_connections_that_say_nothing_keep_nobody_out(served, sent, client):
    url = served("--head-s", "60").url
    _allow_files(1000)
    with ExitStack() as stack:
        for _ in range(400):
            stack.enter_context(connect(url)).sendall(sent)
        alive(url, 10)
        assert client(url).act(observe(step=4)).actions[0, 0] == 4


def test_idle_connections_keep_nobody_out(served, client):
    url = served().url
    _allow_files(1000)
    with ExitStack() as stack:
        for _ in range(300):
            raw = stack.enter_context(connect(url))
            raw.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert raw.recv(65536).startswith(b"HTTP/1.1 200")
        alive(url, 10)
        assert client(url).act(observe(step=4)).actions[0, 0] == 4


def test_many_slow_bodies_leave_the_probes_alone(served):
    url = served("--request-s", "60").url
    with ExitStack() as stack:
        for _ in range(150):
            stack.enter_context(connect(url)).sendall(HEAD + b"Content-Length: 9000\r\n\r\nabc")
        alive(url, 10)
        answer = httpx.get(url + "/v1/info", timeout=10)
        assert answer.status_code == 503 and answer.json()["type"].endswith("busy") and answer.headers["Retry-After"]


def test_a_probe_by_another_name_is_answered_when_connections_are_used_up(served):
    url = served("--request-s", "60", "--probe", "/health").url
    with ExitStack() as stack:
        for _ in range(150):
            stack.enter_context(connect(url)).sendall(HEAD + b"Content-Length: 9000\r\n\r\nabc")
        answers = {route: httpx.get(url + route, timeout=10).status_code for route in ("/health", "/v1/info")}
    assert answers == {"/health": 200, "/v1/info": 503}


def test_held_bodies_are_bounded_together_and_the_oldest_gives_way(served, client):
    service = served("--request-s", "60")
    before, size = resident_mb(service.process.pid), 15 * 10**6
    with ExitStack() as stack:
        for _ in range(40):
            raw = stack.enter_context(connect(service.url))
            raw.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % size)
            threading.Thread(target=_send, args=(raw, bytes(size - 1000)), daemon=True).start()
        time.sleep(3)
        assert resident_mb(service.process.pid) - before < 300
        assert client(service.url).act(observe(step=4)).actions[0, 0] == 4
    assert httpx.get(service.url + "/readyz").status_code == 200


def test_without_the_token_a_body_is_not_looked_at(served):
    url = served("--token", "correct-horse-battery").url
    answer, seconds = answer_to_trickle(url, HEAD + b"Content-Length: 90000\r\n\r\n", b"x")
    assert answer.startswith(b"HTTP/1.1 401") and seconds < 30
    assert httpx.get(url + "/v1/info").status_code == 401


def test_pipelined_requests_are_bounded(served):
    url = served().url
    asked, last = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /livez HTTP/1.1\r\nConnection: close\r\n\r\n"
    assert exchange(url, asked * 9 + last).count(b"HTTP/1.1 200") == 10
    assert exchange(url, asked * 500).count(b"HTTP/1.1 200") < 500  # and the connection is closed
    alive(url)


@pytest.mark.parametrize("kind", ["keys", "long key", "numbers", "encoded"])
def test_a_flood_of_keys_does_not_hold_up_the_probes(served, kind):
    bodies = {
        "keys": "{" + ",".join(f'"unnorm_ke{i}":1' for i in range(600_000)) + "}",
        "long key": json.dumps({"image": 1, "instruction": "x", "unnorm_ke" * 10**6: 1}),
        "numbers": json.dumps({"image": to_json_of_zeros(), "instruction": "x", "state": [0] * 10**6}),
        "encoded": json.dumps({"encoded": "{" + ",".join(f'"k{i}":1' for i in range(500_000)) + "}"}),
    }
    url, slowest, stop = served().url, [0.0], threading.Event()

    def watch():
        with httpx.Client(timeout=30) as probe:
            while not stop.is_set():
                start = time.monotonic()
                assert probe.get(url + "/livez").status_code == 200
                slowest[0] = max(slowest[0], time.monotonic() - start)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(3):
        answer = httpx.post(
            url + "/act", content=bodies[kind], headers={"Content-Type": "application/json"}, timeout=60
        )
        assert answer.status_code == 422 and len(answer.text) < 2000
    stop.set()
    watcher.join()
    assert slowest[0] < 2.0  # seven seconds before


def to_json_of_zeros():
    import numpy as np

    return to_json(np.zeros((4, 4, 3), np.uint8))


def resident_mb(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20


def _send(raw, data):
    with suppress(OSError):
        raw.sendall(data)


def _allow_files(count):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
