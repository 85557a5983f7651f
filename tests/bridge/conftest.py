"""Puts the tree and its packages on the import path, and starts the foreign servers that the bridge is tested on."""

import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
for entry in (ROOT, *(ROOT / "shared" / name for name in ("common", "contract", "evaluation", "fast_libero"))):
    if str(entry) not in sys.path:
        sys.path.insert(0, str(entry))

from websockets.exceptions import ConnectionClosed  # noqa: E402
from websockets.sync.server import ServerConnection, serve  # noqa: E402


@pytest.fixture
def stack():
    """What is entered here ends with the test."""
    with ExitStack() as entered:
        yield entered


@pytest.fixture
def foreign(stack):
    """Returns a function that serves a websocket with `handler`, and gives its address."""

    def start(handler: Callable[[ServerConnection], None], port: int = 0) -> str:
        open_now: list[ServerConnection] = []

        def handle(connection: ServerConnection) -> None:
            open_now.append(connection)
            with suppress(ConnectionClosed):
                handler(connection)

        def cut() -> None:
            for connection in open_now:
                with suppress(OSError):
                    connection.socket.shutdown(socket.SHUT_RDWR)

        server = stack.enter_context(serve(handle, "127.0.0.1", port, compression=None, max_size=None))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        stack.callback(thread.join, 10)
        stack.callback(cut)
        stack.callback(server.shutdown)
        return f"ws://127.0.0.1:{server.socket.getsockname()[1]}"

    return start


@pytest.fixture
def tcp(stack):
    """Returns a function that says `words` to whoever connects, and gives the address."""

    def start(words: bytes) -> str:
        listener = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))

        def answer() -> None:
            while True:
                try:
                    with listener.accept()[0] as one:
                        one.settimeout(10)
                        one.recv(65536)
                        one.sendall(words)
                except OSError:
                    return

        thread = threading.Thread(target=answer)
        thread.start()
        stack.callback(thread.join, 10)
        stack.callback(listener.shutdown, socket.SHUT_RDWR)
        return f"ws://127.0.0.1:{listener.getsockname()[1]}"

    return start
