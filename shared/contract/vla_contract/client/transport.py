"""HTTP for the client, on the standard library's connections: keep-alive, timeouts, nothing else.

An evaluator asks once per step, so what a request costs on the client's side is paid by every step.
"""

import http.client
import os
import socket
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import SplitResult, urlsplit

from vla_contract.client.response import Response, read_response

KEEP_S = 60.0  # an idle connection older than this is not used again; our servers keep theirs for 120 s
CONNECT_S = 5.0  # three tries of the kernel's; a policy that is there answers the first
PROBE_AFTER_S, PROBE_EVERY_S, PROBES = 10, 5, 3  # a server's machine that answers none of them is gone
FAULTS = (OSError, http.client.HTTPException)  # whatever can go wrong between here and the server


class Transport:
    """Requests to one server. Safe to share between threads: each request has a connection to itself.

    Raises ValueError for an address that is no http or https URL. Proxies in the environment are not asked: a
    proxy has no business between the machines of one lab.
    """

    def __init__(self, base_url: str):
        url = _split(base_url)
        assert url.hostname is not None
        self.base_url = base_url.rstrip("/")
        self._path = url.path.rstrip("/")
        self._host, self._port = url.hostname, url.port
        self._host_header = _host_header(url.hostname, url.port)
        secure = url.scheme == "https"
        self._kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._idle: deque[tuple[http.client.HTTPConnection, float]] = deque()
        self._owner = os.getpid()

    def request(
        self, method: str, route: str, timeout_s: float, headers: Mapping[str, str], body: bytes | None = None
    ) -> Response:
        """Returns the server's answer, of whatever status.

        timeout_s is for all of it, from connecting to the answer's last byte; connecting alone may take CONNECT_S.
        Raises one of FAULTS. A kept connection that the server has closed meanwhile is replaced by a new one at once.
        """
        end, kept = time.monotonic() + timeout_s, self._kept()
        if kept is not None:
            try:
                return self._exchange(kept, end, method, route, headers, body)
            except (ConnectionError, http.client.BadStatusLine):
                self.close()  # what happened to one has happened to all
        return self._exchange(self._open(end), end, method, route, headers, body)

    def close(self) -> None:
        """Closes the idle connections."""
        while self._idle:
            self._idle.pop()[0].close()

    def _open(self, end: float) -> http.client.HTTPConnection:
        """Returns a new connection. Raises ConnectionError where nobody takes it up in time."""
        within_s = min(CONNECT_S, _left_s(end))
        connection = self._kind(self._host, self._port, timeout=within_s)
        try:
            connection.connect()
        except TimeoutError as error:
            raise ConnectionError(f"no connection within {within_s:.3g} s") from error
        probe(connection.sock)
        return connection

    def _kept(self) -> http.client.HTTPConnection | None:
        if self._owner != os.getpid():  # after a fork both processes hold the same sockets
            self._idle, self._owner = deque(), os.getpid()
        while self._idle:
            try:
                connection, since = self._idle.pop()  # the one used last: the least likely to be closed
            except IndexError:  # another thread took it
                return None
            if time.monotonic() - since < KEEP_S:
                return connection
            connection.close()
        return None

    def _exchange(
        self, connection: http.client.HTTPConnection, end: float,
        method: str, route: str, headers: Mapping[str, str], body: bytes | None,
    ) -> Response:  # fmt: skip
        try:
            connection.sock.settimeout(_left_s(end))
            with suppress(BrokenPipeError, ConnectionResetError):
                # a server that refuses a body closes early, and may have said why before
                connection.sock.sendall(self._message(method, route, headers, body))
            response, keep = read_response(connection.sock, end)
        except BaseException:
            connection.close()
            raise
        if keep:
            self._idle.append((connection, time.monotonic()))
        else:
            connection.close()
        return response

    def _message(self, method: str, route: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        """Returns head and body in one piece: in two, the server wakes for the head and waits for the body."""
        lines = [f"{method} {self._path}{route} HTTP/1.1", f"Host: {self._host_header}", "Accept-Encoding: identity"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "", ""]).encode("ascii") + (body or b"")


def probe(sock: socket.socket) -> None:
    """Makes the kernel ask whether the other machine is still there while nothing is sent.

    A container that is killed, or a machine that loses power, closes no connection: without these an answer would be
    waited for as long as a slow policy may take.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
    gone_s = PROBE_AFTER_S + PROBES * PROBE_EVERY_S
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * gone_s)  # the same for what was sent


def _left_s(end: float) -> float:
    if (left_s := end - time.monotonic()) <= 0:
        raise TimeoutError("timed out")
    return left_s


def _host_header(name: str, port: int | None) -> str:
    host = name.encode("idna").decode()
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{port}" if port else host


def _split(text: str) -> SplitResult:
    try:
        url = urlsplit(text)
        known = url.scheme in ("http", "https") and url.hostname and url.hostname.encode("idna") and url.port != 0
    except (ValueError, TypeError, AttributeError):  # a port that is no number, a host that is no name, no text
        known = False
    if not known or url.username is not None or url.query or url.fragment or not text.isprintable() or " " in text:
        raise ValueError(f"policy address {text!r} is no URL of a service; expected for example http://127.0.0.1:8001")
    return url
