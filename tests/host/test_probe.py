"""The local runtime's health check says what the contract's program says, and never takes longer than it may."""

import contextlib
import socket
import subprocess
import sys
import threading
import time

import pytest

from vlalab.description import compose
from vlalab.runtimes import local, probe


@pytest.mark.parametrize("status", [200, 204, 404, 500, 503])
def test_it_agrees_with_the_contracts_program(answering, status):
    url = answering(status)
    command = [sys.executable, "-m", probe.MODULE, url]
    program = subprocess.run(command, env=local.service_variables(), capture_output=True).returncode == 0
    assert probe.is_ready(url, 5) is program is (status < 300)


def test_nobody_there_is_not_ready():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert not probe.is_ready(f"http://127.0.0.1:{free.getsockname()[1]}/", 5)
    assert not probe.is_ready("", 5) and not probe.is_ready("http://:x/", 5)


@pytest.mark.parametrize("words", [b"", b"HTTP/1.1 2", b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n"])
def test_what_is_no_answer_is_not_ready(words):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            connection.sendall(words)
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        assert not probe.is_ready(f"http://127.0.0.1:{server.getsockname()[1]}/", 5)


def test_an_answer_that_trickles_in_is_not_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with contextlib.suppress(OSError):  # the other side has gone
                for letter in "HTTP/1.1 200 OK":
                    connection.sendall(letter.encode())
                    time.sleep(2)

        threading.Thread(target=answer, daemon=True).start()
        started = time.monotonic()
        assert not probe.is_ready(f"http://127.0.0.1:{server.getsockname()[1]}/", 3)
        assert time.monotonic() - started < 20  # each letter is in time, the whole is not


def test_every_service_has_a_check_that_it_can_ask():
    for service in compose.read(variables={}).values():
        assert service.health is None or probe.asked_by(service.health.test).startswith("http://127.0.0.1:")
