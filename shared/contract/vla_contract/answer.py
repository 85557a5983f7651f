"""An HTTP/1 answer, read from a socket.

Python's own `http.client` makes a file of the socket and an e-mail message of the head: a fifth of a whole request,
which every simulator step pays.
"""

import http.client
import time
from collections.abc import Mapping
from dataclasses import dataclass

MAX_ANSWER = 32 * 2**20  # bytes
MAX_LINE, MAX_HEADERS = 65536, 100  # of the head
_PIECE = 65536


@dataclass(frozen=True)
class Reply:
    """An HTTP response, read to its end."""

    status: int
    reason: str
    headers: Mapping[str, str]  # case-insensitive
    body: bytes


class _Headers(dict):
    """Headers under lower-case names, found under any."""

    def get(self, name: str, default: str | None = None) -> str | None:
        return super().get(name.lower(), default)


class _Incoming:
    """What comes through a socket until `end` (time.monotonic), line by line and byte by byte."""

    def __init__(self, sock, end: float):
        self._sock, self._end, self._held, self._at = sock, end, b"", 0

    def _recv(self, count: int) -> bytes:
        left_s = self._end - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left_s)  # a socket's own timeout is for each wait: one byte a second would never end
        return self._sock.recv(count)

    def _more(self) -> None:
        piece = self._recv(_PIECE)
        if not piece:
            raise http.client.IncompleteRead(self._held[self._at :])
        self._held, self._at = self._held[self._at :] + piece, 0

    def first(self) -> None:
        """Waits for the answer to begin. Raises RemoteDisconnected where it never does."""
        try:
            self._more()
        except http.client.IncompleteRead:
            raise http.client.RemoteDisconnected("the connection was closed without an answer") from None

    def line(self) -> str:
        """Returns the next line without its end."""
        while (end := self._held.find(b"\n", self._at)) < 0 and len(self._held) - self._at < MAX_LINE:
            self._more()
        if not 0 <= end - self._at < MAX_LINE:
            raise http.client.LineTooLong("head")
        line, self._at = self._held[self._at : end], end + 1
        return line.decode("latin-1").rstrip("\r")

    def take(self, count: int) -> bytes:
        """Returns the next `count` bytes."""
        parts = [self._held[self._at : self._at + count]]
        self._at += len(parts[0])
        left = count - len(parts[0])
        while left:
            piece = self._recv(min(left, 2**20))
            if not piece:
                raise http.client.IncompleteRead(b"".join(parts), left)
            parts.append(piece)
            left -= len(piece)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def empty(self) -> bool:
        """Whether all that has come so far was taken."""
        return self._at == len(self._held)


def read_reply(sock, end: float) -> tuple[Reply, bool]:
    """Returns the answer, whole by `end` (time.monotonic), and whether the connection may carry another request.

    Raises OSError and http.client.HTTPException for what is no answer, ends too early, or is longer than MAX_ANSWER.
    A length must be given: without one, whether a body is whole cannot be known.
    """
    incoming = _Incoming(sock, end)
    incoming.first()
    status = 100
    while status == 100:  # "go on" is no answer yet
        version, status, reason = _status(incoming.line())
        headers = _headers(incoming)
    body = b"" if status in (204, 304) else _body(incoming, headers)
    keep = headers.get("connection", "close" if version == "HTTP/1.0" else "keep-alive").lower()
    return Reply(status, reason, headers, body), "close" not in keep and incoming.empty


def _status(line: str) -> tuple[str, int, str]:
    version, _, rest = line.partition(" ")
    code, _, reason = rest.partition(" ")
    if not version.startswith("HTTP/1.") or len(code) != 3 or not code.isdecimal() or code < "100":
        raise http.client.BadStatusLine(line[:80])
    return version, int(code), reason


def _headers(incoming: _Incoming) -> _Headers:
    found = _Headers()
    while line := incoming.line():
        name, colon, value = line.partition(":")
        if not colon or len(found) == MAX_HEADERS:
            raise http.client.HTTPException(f"the answer's head is none: {line[:80]!r}")
        found[name.lower()] = value.strip()
    return found


def _body(incoming: _Incoming, headers: _Headers) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return _chunks(incoming)
    length = headers.get("content-length", "")
    if not length.isdecimal() or int(length) > MAX_ANSWER:
        raise http.client.IncompleteRead(b"")
    return incoming.take(int(length))


def _chunks(incoming: _Incoming) -> bytes:
    body = bytearray()
    while size := _chunk_size(incoming.line()):
        if len(body) + size > MAX_ANSWER:
            raise http.client.IncompleteRead(b"")
        body += incoming.take(size)
        if incoming.line():
            raise http.client.HTTPException(f"a chunk of {size} bytes does not end there")
    _headers(incoming)  # trailers
    return bytes(body)


def _chunk_size(line: str) -> int:
    digits = line.partition(";")[0].strip()
    if not digits or not set(digits) <= set("0123456789abcdefABCDEF"):
        raise http.client.HTTPException(f"{line[:80]!r} is no chunk's size")
    return int(digits, 16)
