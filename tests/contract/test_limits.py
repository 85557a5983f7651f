"""Slow, large and many: raw sockets against a service in a process of its own."""

import json
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import numpy as np
import pytest
from fakes import observe
from test_app import HEAD, PACKED
from test_serve import process  # noqa: F401

from vla_contract.protocol.act_json import to_json
from vla_contract.protocol.messages import encode_observation

TRICKLE = 0.3  # seconds between two bytes


@pytest.fixture
def served(process, client):  # noqa: F811
    """Returns a function that starts a small service with a short deadline and waits for it."""

    def start(*arguments):
        service = process("forgetful", 0, 0.0, "--request-s", "2", *arguments)
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


@pytest.mark.parametrize("large", [b"X: " + b"y" * 2**20, b"X: y\r\n" * 170_000], ids=["one", "many"])
def test_a_head_that_never_ends_is_refused_and_takes_no_memory(served, large):
    service = served()
    before = resident_mb(service.process.pid)
    with connect(service.url) as raw:
        try:
            raw.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n")
            for _ in range(100):
                raw.sendall(large)
            answer = raw.recv(65536)
        except ConnectionError:
            answer = b""
    assert not answer or answer.startswith(b"HTTP/1.1 400")
    assert resident_mb(service.process.pid) - before < 30
    alive(service.url)


def test_held_bodies_are_bounded_together_and_the_oldest_is_replaced(served, client):
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


def test_many_large_bodies_at_once_take_bounded_memory_and_end_in_an_answer(served):
    """Each is 8 MB and whole; those for which there is no room are told to come again."""
    service, size, statuses = served("--request-s", "60"), 8 * 10**6, []
    body = encode_observation(observe(images={"agentview": np.zeros((1600, 1600, 3), np.uint8)}))
    assert len(body) > 0.9 * size
    before = resident_mb(service.process.pid)

    def send():
        answer = httpx.post(service.url + "/v1/act", content=body, headers=PACKED, timeout=60)
        statuses.append((answer.status_code, "retry-after" in answer.headers))

    threads = [threading.Thread(target=send) for _ in range(48)]
    for thread in threads:
        thread.start()
    largest = 0
    while any(thread.is_alive() for thread in threads):
        largest = max(largest, resident_mb(service.process.pid))
        time.sleep(0.02)
    assert len(statuses) == 48 and set(statuses) <= {(200, False), (503, True), (429, True)}
    assert (200, False) in statuses
    assert largest - before < 300  # 384 MB were sent
    alive(service.url)


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
    return to_json(np.zeros((4, 4, 3), np.uint8))


def resident_mb(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20


def _send(raw, data):
    with suppress(OSError):
        raw.sendall(data)
