"""The steward's HTTP over a Unix socket: who knows the secret gets one of few routes, at a bounded rate.

| route | what |
|---|---|
| `GET /status` | `./lab status --json`, and what was started and stopped from here |
| `GET /doctor`, `POST /doctor` | what the doctor said last; have it look again |
| `GET /services/NAME/log` | the end of a log, without secrets |
| `POST /services/NAME/start`, `…/stop` | `./lab up NAME`, `./lab down NAME` |

No route takes a body or a query.
"""

from __future__ import annotations

import hmac
import json
import socket
import socketserver
import threading
import time
from http.server import BaseHTTPRequestHandler
from typing import Any

from vlalab.steward.acting import VERBS, Refused, Steward

CONNECTIONS = 32  # at once
PER_SECOND, BURST = 20.0, 60.0  # requests
TIMEOUT_S = 10.0  # for a request to arrive whole


class Rate:
    """So many a second, and some more at once."""

    def __init__(self, per_second: float, burst: float):
        self._per_second, self._burst, self._left = per_second, burst, burst
        self._lock, self._then = threading.Lock(), time.monotonic()

    def allows(self) -> bool:
        """Returns whether one more is within bounds, and counts it."""
        with self._lock:
            now = time.monotonic()
            self._left = min(self._burst, self._left + (now - self._then) * self._per_second)
            self._then = now
            if self._left < 1:
                return False
            self._left -= 1
            return True


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Answers on a socket; a connection too many is closed at once."""

    daemon_threads, block_on_close, request_queue_size = True, False, CONNECTIONS

    def __init__(self, address: str, steward: Steward, secret: str):
        self.steward, self.secret, self.rate = steward, f"Bearer {secret}".encode(), Rate(PER_SECOND, BURST)
        self._slots = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(address, Handler)

    def process_request(self, request: socket.socket, client_address: Any) -> None:
        """Answers in a thread, while there are not too many."""
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: socket.socket, client_address: Any) -> None:
        """Answers, and lets the next one in."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()


class Handler(BaseHTTPRequestHandler):
    """One request of one connection."""

    timeout = TIMEOUT_S
    server: Server

    def do_GET(self) -> None:
        """Answers what looks."""
        self._answer()

    def do_POST(self) -> None:
        """Answers what does something."""
        self._answer()

    def _answer(self) -> None:
        try:
            self._let_in()
            self._send(200, self._found())
        except Refused as refused:
            self._send(refused.status, {"detail": refused.why})

    def _let_in(self) -> None:
        """Raises Refused for who does not know the secret, for too many requests, and for one with a body."""
        if not self.server.rate.allows():
            raise Refused(429, "too many requests; try again in a second")
        given = self.headers.get("authorization", "").encode("utf-8", "replace")
        if not hmac.compare_digest(given, self.server.secret):
            raise Refused(401, "that is not the secret")
        if self.headers.get("content-length", "0") != "0" or "transfer-encoding" in self.headers:
            raise Refused(413, "no body is expected")

    def _found(self) -> Any:
        steward, (first, *rest) = self.server.steward, self.path.split("/")[1:] or [""]
        match (self.command, first, *rest):
            case ("GET", "status"):
                return steward.status()
            case ("GET", "doctor"):
                return steward.doctor()
            case ("POST", "doctor"):
                return steward.examine()
            case ("GET", "services", name, "log"):
                return steward.log(name)
            case ("POST", "services", name, what) if what in VERBS:
                return steward.begin(what, name)
        raise Refused(404, "there is no such route")

    def _send(self, status: int, answer: Any) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing of each request: what is done is told by the steward."""
