"""The health check of compose.yaml, `python -m vla_common.healthcheck URL`, asked from here.

It means the same, and costs a connection instead of a Python. One deadline holds for the whole of it.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

MODULE = "vla_common.healthcheck"
_STATUS = re.compile(rb"HTTP/1\.\d 2\d\d ")


def asked_by(test: Sequence[str]) -> str:
    """Returns the URL that a health check asks, "" for a check of another kind."""
    return test[3] if len(test) == 4 and tuple(test[:3]) == ("python", "-m", MODULE) else ""


def is_ready(url: str, timeout_s: float) -> bool:
    """Returns whether that URL answers with a status of 2xx in time."""
    parts, deadline = urlsplit(url), time.monotonic() + timeout_s
    head = f"Host: {parts.netloc}\r\nAccept: */*\r\nConnection: close"
    request = f"GET {parts.path or '/readyz'} HTTP/1.1\r\n{head}\r\n\r\n"  # websockets answers no HTTP/1.0
    try:
        with socket.create_connection((parts.hostname, parts.port), timeout_s) as connection:
            connection.sendall(request.encode())
            return _STATUS.match(_status_line(connection, deadline)) is not None
    except (OSError, ValueError, TypeError):  # nobody there, too late, or no URL
        return False


def _status_line(connection: socket.socket, deadline: float) -> bytes:
    """Returns the first bytes of an answer: enough to see its status."""
    found = b""
    while len(found) < len("HTTP/1.1 200 "):
        if (left_s := deadline - time.monotonic()) <= 0:
            raise TimeoutError
        connection.settimeout(left_s)
        if not (data := connection.recv(64)):
            break
        found += data
    return found
