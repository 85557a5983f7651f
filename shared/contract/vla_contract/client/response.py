"""An HTTP/1 answer, read from a socket; httptools says where its parts begin and end.

Python's own `http.client` makes a file of the socket and an e-mail message of the head: a fifth of a whole request,
which every simulator step pays.
"""

import http.client
import socket
import time
from collections.abc import Iterable
from typing import NamedTuple

from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserInvalidStatusError,
    HttpParserUpgrade,
    HttpResponseParser,
)

MAX_LINE, MAX_HEADERS = 65536, 100  # the head: bytes, with any "go on" before it, and how many
MAX_ANSWER = 32 * 2**20  # bytes behind the head
_PIECE = 65536  # what malloc keeps at hand: for 1 MiB it asks the kernel, 25 µs an answer


class Headers:
    """Headers, found as text under their names in any case."""

    def __init__(self, fields: Iterable[tuple[bytes, bytes]] = ()):
        self._values = dict(fields)  # under lower-case names

    def get(self, name: str) -> str | None:
        value = self._values.get(name.lower().encode())
        return None if value is None else value.decode("latin-1").strip()


class Response(NamedTuple):
    """An HTTP response, read to its end."""

    status: int
    reason: str
    headers: Headers
    body: bytes


class _MoreError(Exception):
    """Bytes behind the answer."""


class _Arriving:
    """What has come so far of a response. The parser calls what begins with `on_`."""

    def __init__(self) -> None:
        self._fields: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] = []
        self.headers: Headers | None = None
        self.status, self.whole, self.keep = 0, False, False
        self.on_body = self._parts.append
        self._parser = HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True)  # lines may end in "\n" alone

    def feed(self, piece: bytes) -> None:
        """Raises HTTPException for what is no answer, or one that is too long or whose end could not be known."""
        begun = self.headers is not None
        try:
            self._parser.feed_data(piece)
        except (HttpParserError, HttpParserUpgrade) as error:
            cause = error.__context__ if isinstance(error, HttpParserCallbackError) else None
            if cause is not None and not isinstance(cause, _MoreError):
                raise cause from None  # of a signal's handler: Ctrl-C is no fault of the answer's
            self.keep = False
            if not self.whole:  # else the answer is in order, and more than it has come
                raise self._fault(error) from None
        if self.headers is not None and not begun:
            self._check_head(self.headers)

    def whole_response(self) -> Response:
        assert self.headers is not None
        del self._parser  # it holds this, and only a collection of garbage would end the two
        return Response(self.status, http.client.responses.get(self.status, ""), self.headers, self.body())

    def body(self) -> bytes:
        return b"".join(self._parts)

    def on_message_begin(self) -> None:
        if self.whole:
            raise _MoreError
        self._fields = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if not 100 <= self.status < 200:  # else "go on", which is no answer yet
            self.headers, self.keep = Headers(self._fields), self._parser.should_keep_alive()

    def on_message_complete(self) -> None:
        self.whole = self.headers is not None

    def _check_head(self, headers: Headers) -> None:
        if self.status < 100 or (not self.keep and self._parser.get_http_version()[0] != "1"):  # 1.1 keeps
            raise http.client.BadStatusLine(f"HTTP/{self._parser.get_http_version()} {self.status}")
        if len(self._fields) > MAX_HEADERS:
            raise http.client.HTTPException(f"the answer has more than {MAX_HEADERS} headers")
        if (length := headers.get("content-length")) is not None:
            known = int(length) <= MAX_ANSWER
        else:
            known = self.status in (204, 304) or (headers.get("transfer-encoding") or "").lower() == "chunked"
        if not known:
            raise http.client.IncompleteRead(b"")

    def _fault(self, error: Exception) -> http.client.HTTPException:
        if not self._parser.get_status_code() or isinstance(error, HttpParserInvalidStatusError):
            return http.client.BadStatusLine(str(error))
        if "Content-Length" in str(error):  # the parser has one kind for all that is wrong in a head
            return http.client.IncompleteRead(b"")
        return http.client.HTTPException(f"the answer is none of HTTP: {error}")


def read_response(sock: socket.socket, end: float) -> tuple[Response, bool]:
    """Returns the answer, whole by `end` (time.monotonic), and whether the connection may carry another request.

    Raises OSError and http.client.HTTPException for what is no answer, ends too early, or is longer than MAX_ANSWER.
    A length must be given: without one, whether a body is whole cannot be known.
    """
    answer, taken = _Arriving(), 0
    while not answer.whole:
        room = MAX_LINE - taken + (MAX_ANSWER if answer.headers is not None else 0)
        if room <= 0:
            raise http.client.LineTooLong("head") if answer.headers is None else http.client.IncompleteRead(b"")
        piece = _recv(sock, min(room, _PIECE), end)
        if not piece:
            raise _cut_off(answer, taken)
        answer.feed(piece)
        taken += len(piece)
    return answer.whole_response(), answer.keep


def _recv(sock: socket.socket, count: int, end: float) -> bytes:
    left_s = end - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("timed out")
    sock.settimeout(left_s)  # a socket's own timeout is for each wait: one byte a second would never end
    return sock.recv(count)


def _cut_off(answer: _Arriving, taken: int) -> Exception:
    if taken:
        return http.client.IncompleteRead(answer.body())
    return http.client.RemoteDisconnected("the connection was closed without an answer")
