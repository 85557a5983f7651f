"""Ports for tests: free ones, one that refuses, and those that compose.yaml names, taken by somebody else.

Several people test on one machine at once, with services of their own up: no test may count on a port that is free.
"""

from __future__ import annotations

import contextlib
import random
import re
import socket
from collections.abc import Iterator
from pathlib import Path

COMPOSE = Path(__file__).resolve().parents[1] / "compose.yaml"


# Below Linux's default range for outgoing connections (32768 to 60999): none of those may take a chosen port.
CHOICE = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Return that many different ports that nobody listens on and that no outgoing connection is given."""
    ports = []
    with contextlib.ExitStack() as stack:
        while len(ports) < count:
            port = random.choice(CHOICE)
            with contextlib.suppress(OSError):
                stack.enter_context(_bound(port))
                ports.append(port)
    return ports


@contextlib.contextmanager
def refusing() -> Iterator[str]:
    """Holds an address where every connection is refused: its port is taken, and nobody listens."""
    with _bound(0) as held:
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


def of_services() -> list[int]:
    """Returns the ports that compose.yaml gives services by default; none in an image, which has no compose.yaml."""
    text = COMPOSE.read_text() if COMPOSE.exists() else ""
    return sorted({int(number) for number in re.findall(r"VLALAB_\w+_PORT:-(\d+)", text)})


@contextlib.contextmanager
def taken() -> Iterator[None]:
    """Takes the services' default ports, as somebody else's services would; those that are taken already stay so."""
    with contextlib.ExitStack() as held:
        for port in of_services():
            with contextlib.suppress(OSError):
                held.enter_context(_bound(port)).listen()
        yield


def _bound(port: int) -> socket.socket:
    held = socket.socket()
    try:
        held.bind(("127.0.0.1", port))
    except OSError:
        held.close()
        raise
    return held
