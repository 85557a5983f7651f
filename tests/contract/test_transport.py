"""What the client takes for an HTTP answer, byte by byte, and what for a fault."""

import http.client
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from vla_contract import PolicyClient, PolicyUnavailable
from vla_contract.client import transport
from vla_contract.client.transport import FAULTS, Transport
from vla_contract.server.serving import address, listen

OK = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
def answered():
    """Returns a function: what a client makes of these bytes; the server closes the connection behind them."""
    open_ones = []

    def ask(answer: bytes, method: str = "POST", pause_s: float = 0.0):
        listener = listen("127.0.0.1", 0)
        open_ones.append(listener)

        def serve():
            connection, _ = listener.accept()
            with connection:
                request = b""  # read to its end: closing before would reset the connection
                while not request.endswith(b"body" if method == "POST" else b"\r\n\r\n"):
                    request += connection.recv(65536)
                for piece in [answer[i : i + 1] for i in range(len(answer))] if pause_s else [answer]:
                    connection.sendall(piece)
                    time.sleep(pause_s)

        threading.Thread(target=serve, daemon=True).start()
        return Transport(address(listener)).request(method, "/x", 5.0, {}, b"body" if method == "POST" else None)

    yield ask
    for listener in open_ones:
        listener.close()


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (OK + b"Content-Length: 3\r\n\r\nabc", 200, b"abc"),
        (OK + b"content-length:3 \r\n\r\nabcdef", 200, b"abc"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", 200, b"abc"),
        (
            OK + b"Transfer-Encoding: chunked\r\n\r\nA;x=y\r\n" + b"z" * 10 + b"\r\n0\r\nTrailer: t\r\n\r\n",
            200,
            b"z" * 10,
        ),
        (b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n" + OK + b"Content-Length: 3\r\n\r\nabc", 200, b"abc"),
        (b"HTTP/1.0 503 Busy\nContent-Length: 0\n\n", 503, b""),
        (b"HTTP/1.1 404\r\nContent-Length: 0\r\n\r\n", 404, b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    ],
)
def test_answers(answered, answer, status, body):
    reply = answered(answer)
    assert (reply.status, reply.body) == (status, body)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n" + OK + b"Retry-After: 7\r\nContent-Length: 3\r\n\r\nabc",
        OK + b"Retry-After: 7\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\nRetry-After: 8\r\n\r\n",
        OK + b"Connection: close\r\nRetry-After: 7\r\nContent-Length: 3\r\n\r\nabc",
    ],
)
def test_an_answer_may_come_byte_by_byte(answered, answer):
    reply = answered(answer, pause_s=0.0005)
    assert (reply.status, reply.reason, reply.headers.get("Retry-After"), reply.body) == (200, "OK", "7", b"abc")


@pytest.mark.parametrize("more", [b"x", b"H", OK, OK + b"Content-Length: 1\r\n\r\nx", b"\x00"])
def test_what_follows_an_answer_is_not_taken_for_the_next(more):
    """It arrived with the answer: before the next request was sent."""
    with listen("127.0.0.1", 0) as listener:
        transport = Transport(address(listener))

        def serve():
            with listener.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(OK + b"Content-Length: 3\r\n\r\nabc" + more)
                connection.recv(65536)
                connection.sendall(OK + b"Content-Length: 3\r\n\r\ndef")

        threading.Thread(target=serve, daemon=True).start()
        assert [transport.request("GET", "/x", 5.0, {}).body for _ in range(2)] == [b"abc", b"def"]


def test_headers_are_found_in_any_case(answered):
    reply = answered(OK + b"RETRY-after:  7\r\nX-Empty:\r\nContent-Length: 0\r\n\r\n")
    assert [reply.headers.get(name) for name in ("Retry-After", "retry-AFTER", "x-empty", "x-none")] == [
        "7", "7", "", None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (b"", ConnectionError),
        (b"HTTP/1.1 2", http.client.HTTPException),
        (OK + b"Content-Le", http.client.IncompleteRead),
        (OK + b"Content-Length: 3\r\n", http.client.IncompleteRead),
        (OK + b"Content-Length: 3\r\n\r\nab", http.client.IncompleteRead),
        (OK + b"\r\nno length", http.client.IncompleteRead),
        (OK + b"Content-Length: -3\r\n\r\n", http.client.IncompleteRead),
        (OK + b"Content-Length: 999999999999\r\n\r\nab", http.client.IncompleteRead),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab", http.client.IncompleteRead),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n", http.client.HTTPException),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n-2\r\nab\r\n0\r\n\r\n", http.client.HTTPException),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nfffffffff\r\n", http.client.IncompleteRead),
        (OK + b"no colon\r\n\r\n", http.client.HTTPException),
        (OK + b"X: y\r\n" * 101 + b"\r\n", http.client.HTTPException),
        (OK + b"Content-Length: 0\r\n" + b"X: y\r\n" * 100 + b"\r\n", http.client.HTTPException),
        (OK + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", http.client.HTTPException),
        (OK + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", http.client.HTTPException),
        (OK + b"Transfer-Encoding: gzip\r\n\r\nab", http.client.IncompleteRead),
        (OK + b"X: " + b"y" * 65536 + b"\r\n\r\n", http.client.LineTooLong),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, http.client.HTTPException),
        (b"HTTP/2 200 OK\r\n\r\n", http.client.UnknownProtocol),
        (b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n", http.client.UnknownProtocol),
        (b"HTTP/1.1 OK\r\n\r\n", http.client.BadStatusLine),
        (b"HTTP/1.1 099 Odd\r\n\r\n", http.client.BadStatusLine),
        (b"SSH-2.0-OpenSSH\r\n", http.client.BadStatusLine),
    ],
)
def test_faults(answered, answer, fault):
    assert issubclass(fault, FAULTS)
    with pytest.raises(fault):
        answered(answer)


@pytest.mark.parametrize(
    ("head", "kept"),
    [
        (OK, 1),
        (OK + b"Connection: close\r\n", 0),
        (b"HTTP/1.0 200 OK\r\n", 0),
        (b"HTTP/1.0 200 OK\r\nconnection: Keep-Alive\r\n", 1),
    ],
)
def test_a_connection_is_kept_where_the_server_keeps_it(head, kept):
    with listen("127.0.0.1", 0) as listener:
        transport = Transport(address(listener))
        done = threading.Event()

        def serve():
            with listener.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(head + b"Content-Length: 1\r\n\r\nx")
                done.wait(5)

        threading.Thread(target=serve, daemon=True).start()
        assert transport.request("GET", "/x", 5.0, {}).body == b"x"
        assert len(transport._idle) == kept
        done.set()


def test_a_server_that_vanishes_without_a_word_is_noticed_long_before_a_slow_answer_would_be():
    """What a container does that is killed with SIGKILL: its network goes with it, no end of the connection is sent."""
    here = Path(__file__).parents[2]
    apart = ["unshare", "--user", "--map-root-user", "--net"]
    if not shutil.which("unshare") or subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("no network namespace can be made here")
    path = os.pathsep.join(map(str, (here, here / "shared/common", here / "shared/contract")))
    command = [*apart, sys.executable, "-m", "tests.contract.vanishing"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("gave up early: "), done.stdout + done.stderr
    assert "the server's machine does not respond" in done.stdout


def test_who_takes_up_no_connection_is_noticed_long_before_a_slow_answer_would_be(monkeypatch):
    """What a client meets at once after a container was killed: the address is there still, and nobody behind it."""
    monkeypatch.setattr(transport, "CONNECT_S", 0.3)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        full = [socket.socket() for _ in range(4)]
        for one in full:  # nobody accepts: once its queue is full the kernel drops whoever comes
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        client = PolicyClient(address(listener), timeout_s=60.0, deadline_s=60.0, retries=1)
        with pytest.raises(PolicyUnavailable, match=r"no connection within 0\.3 s \(2 tries in \d\.\d s\)"):
            client.info()
        for one in full:
            one.close()
