"""HTTP for clients, on the standard library's `http.client`: persistent connections, deadlines and retries."""

import functools
import http.client
import io
import os
import random
import socket
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

KEEP_S = 60.0  # an idle connection older than this is not used again; our servers keep theirs for 120 s
CONNECT_S = 5.0  # three attempts of the kernel; a running service accepts the first
PROBE_AFTER_S, PROBE_EVERY_S, PROBES = 10, 5, 3  # without a response to any, the server's machine is gone
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 5.0  # between attempts
MAX_ANSWER = 32 * 2**20  # bytes of a body
FAULTS = (OSError, http.client.HTTPException)  # all errors of transport


def backoff_s(attempt: int, requested_s: float = 0.0) -> float:
    """Return the pause after failed attempt number `attempt` (from 0), never shorter than the server requests.

    Exponential backoff with full jitter.
    """
    return requested_s + random.uniform(0.0, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(attempt, 30)))


class Deadline:
    """The time by which a call, its retries included, must end."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left_s(self) -> float:
        """Return the seconds left; negative after the deadline."""
        return self._end - time.monotonic()

    def require_left_s(self) -> float:
        """Return the seconds left. Raises TimeoutError after the deadline."""
        if (left_s := self.left_s()) <= 0:
            raise TimeoutError("timed out")
        return left_s


class Response(NamedTuple):
    """An HTTP response, read to its end."""

    status: int
    reason: str
    headers: http.client.HTTPMessage  # names in any case
    body: bytes


class Transport:
    """Requests to one server. Safe to share between threads: each request has a connection to itself.

    Raises ValueError for an address that is not an http or https URL. Proxies in the environment are not used.
    """

    def __init__(self, base_url: str):
        try:
            url = urlsplit(base_url)
            is_valid = (
                url.scheme in ("http", "https") and url.hostname and url.hostname.encode("idna") and url.port != 0
            )
            is_valid = is_valid and not (url.username is not None or url.query or url.fragment or " " in base_url)
        except (ValueError, TypeError, AttributeError):  # a bad port or host name, or not a text
            is_valid = False
        if not is_valid or not base_url.isprintable():
            expected = "expected for example http://127.0.0.1:8001"
            raise ValueError(f"policy address {base_url!r} is not a URL of a service; {expected}")
        self.base_url, self._path = base_url.rstrip("/"), url.path.rstrip("/")
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        self._new_connection = functools.partial(kind, url.hostname or "", url.port)
        self._idle: deque[tuple[http.client.HTTPConnection, float]] = deque()
        self._owner = os.getpid()

    def request(
        self, method: str, route: str, timeout_s: float, headers: Mapping[str, str], body: bytes | None = None
    ) -> Response:
        """Return the server's answer, of any status.

        timeout_s: from connecting to the last byte of the response; connecting takes at most CONNECT_S. Raises one of
        FAULTS. An idle connection that the server has closed is replaced.
        """
        deadline = Deadline(timeout_s)
        if self._owner != os.getpid():  # after a fork both processes hold the same sockets
            self._idle, self._owner = deque(), os.getpid()
        try:
            connection, since = self._idle.pop()  # the one used last: the least likely to be closed
        except IndexError:
            return self._exchange(self._open(deadline), deadline, method, route, headers, body)
        if time.monotonic() - since < KEEP_S:
            with suppress(ConnectionError, http.client.BadStatusLine):
                return self._exchange(connection, deadline, method, route, headers, body)
        connection.close()
        self.close()  # the server has probably closed all
        return self._exchange(self._open(deadline), deadline, method, route, headers, body)

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop()[0].close()

    def _open(self, deadline: Deadline) -> http.client.HTTPConnection:
        within_s = min(CONNECT_S, deadline.require_left_s())
        connection = self._new_connection(timeout=within_s)
        try:
            connection.connect()
        except TimeoutError as error:
            raise ConnectionError(f"no connection within {within_s:.3g} s") from error
        probe(connection.sock)
        return connection

    def _exchange(
        self, connection: http.client.HTTPConnection, deadline: Deadline,
        method: str, route: str, headers: Mapping[str, str], body: bytes | None,
    ) -> Response:  # fmt: skip
        def open_response(sock: socket.socket, method: str) -> http.client.HTTPResponse:
            return http.client.HTTPResponse(_Reader(sock, deadline), method=method)  # type: ignore[arg-type]

        try:
            connection.sock.settimeout(deadline.require_left_s())
            with suppress(BrokenPipeError, ConnectionResetError):
                # a server that rejects a body closes early, maybe after a response
                connection.request(method, self._path + route, body, headers)
            connection.response_class = open_response  # type: ignore[assignment]
            with connection.getresponse() as answer:
                response = Response(answer.status, answer.reason, answer.headers, _read_body(answer))
                keep = not answer.will_close
        except BaseException:
            connection.close()
            raise
        if keep:
            self._idle.append((connection, time.monotonic()))
        else:
            connection.close()
        return response


class _Reader(io.RawIOBase):
    """The socket for `HTTPResponse`; every read ends at the deadline of the whole response."""

    def __init__(self, sock: socket.socket, deadline: Deadline):
        # `makefile` keeps the socket open where the connection is closed before the body is read: "Connection: close".
        self._sock, self._raw, self._deadline = sock, sock.makefile("rb", buffering=0), deadline

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self, 65536)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(self._deadline.require_left_s())
        return self._raw.readinto(buffer) or 0

    def close(self) -> None:
        self._raw.close()
        super().close()


def _read_body(answer: http.client.HTTPResponse) -> bytes:
    """Return the body. Raises HTTPException if its end is unknown or it is longer than MAX_ANSWER."""
    lengths = answer.headers.get_all("Content-Length", [])
    # Without a length, a truncated body looks complete; two lengths are ambiguous.
    if len(lengths) + answer.chunked > 1 or (answer.length is None and not answer.chunked):
        raise http.client.IncompleteRead(b"")
    if answer.length is not None and answer.length > MAX_ANSWER:
        raise http.client.IncompleteRead(b"", answer.length)
    try:
        body = answer.read(MAX_ANSWER + 1) if answer.chunked else answer.read()
    except ValueError as error:
        raise http.client.HTTPException(f"the answer is not HTTP: {error}") from error
    if len(body) > MAX_ANSWER:
        raise http.client.IncompleteRead(b"", len(body))
    return body


def probe(sock: socket.socket) -> None:
    """Enable TCP keepalive: the kernel probes the other machine while nothing is sent.

    A killed container or a machine without power closes no connection: a client would wait as long as for a slow
    policy.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
    gone_s = PROBE_AFTER_S + PROBES * PROBE_EVERY_S
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * gone_s)  # the same for what was sent
