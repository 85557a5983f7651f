"""Between a session's process and its service, over a socket: a JSON head and bytes, with their lengths before them."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

LENGTHS = struct.Struct("<II")  # bytes of the head, bytes of what follows; browsers read the same form
MAX_BYTES = 64 * 2**20


def packed(head: dict[str, Any], *blobs: bytes) -> bytes:
    """Returns a message."""
    text = json.dumps(head, separators=(",", ":"), allow_nan=False).encode()
    return b"".join((LENGTHS.pack(len(text), sum(map(len, blobs))), text, *blobs))


def receive(connection: socket.socket) -> dict[str, Any] | None:
    """Returns the next message's head, None where the other end has gone; what follows the head is not kept."""
    lengths = _exactly(connection, LENGTHS.size)
    if lengths is None:
        return None
    head, rest = LENGTHS.unpack(lengths)
    text = _exactly(connection, head + rest)
    return None if text is None else json.loads(text[:head])


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    parts = []
    while count:
        try:
            part = connection.recv(min(count, 2**16))
        except OSError:
            return None
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
