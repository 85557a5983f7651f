"""`serve`: a policy on a port, until SIGINT or SIGTERM."""

import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from vla_contract.protocol.types import Policy
from vla_contract.server import token_file
from vla_contract.server.auth import require_token_beyond_loopback
from vla_contract.server.hosts import HostGuard

log = logging.getLogger("vla_contract")
CONNECTIONS = 900  # many machines limit a process to 1,024 open files
HEAD_BYTES = 32 * 2**10  # of a request, before its body


class LimitedHeadProtocol(HttpToolsProtocol):
    """uvicorn's protocol on httptools, with a limit for a request's head: an endless one gets 400."""

    _in_head, _head_bytes = False, 0

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._head_bytes += len(data)
        if self._in_head and self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The request's head is longer than {HEAD_BYTES} bytes.")


def serve(
    policy: Policy | Callable[[], Policy],
    host: str = "127.0.0.1",
    port: int = 8001,
    *,
    linger_s: float = 3.0,
    log_level: str = "info",
    **settings: Any,
) -> None:
    """Serve a policy until SIGINT or SIGTERM; `settings` are those of `create_app`; `token_file` is by default
    that of $VLALAB_VOLUME.

    port 0 selects any free one; the log's first line has the address. linger_s: how long `/readyz` reports the reason
    after the policy has failed. Raises SystemExit(1) then, OSError for an unusable address, and ValueError where the
    network reaches the service and `settings` hold no token.
    """
    from vla_contract.server.app import (
        create_app,
    )  # late: FastAPI takes 0.6 s to import, and not every service needs it

    require_token_beyond_loopback(host, settings.get("token"))
    if volume := os.environ.get("VLALAB_VOLUME"):
        settings.setdefault("token_file", token_file.path_on(Path(volume)))
    if not logging.getLogger().handlers:
        logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    failed = threading.Event()

    def on_failure() -> None:
        failed.set()
        timer = threading.Timer(linger_s, lambda: setattr(server, "should_exit", True))
        timer.daemon = True
        timer.start()

    app = create_app(policy, on_failure=on_failure, **settings)
    server = uvicorn.Server(uvicorn_config(app, log_level, has_token=settings.get("token") is not None))
    listener = listen(host, port)
    log.info("listening on %s", address(listener))
    with listener, suppress(KeyboardInterrupt):  # uvicorn raises it again after the orderly end
        server.run(sockets=[listener])
    if failed.is_set():
        raise SystemExit(1)


def uvicorn_config(app: ASGIApp, log_level: str, *, has_token: bool = False) -> uvicorn.Config:
    """Return the settings of every service. has_token: whether it requires a token; without one it checks `Host`.

    Raises ValueError for a bad name in $VLALAB_ALLOWED_HOSTS.
    """
    return uvicorn.Config(
        app if has_token else HostGuard(app),
        http=LimitedHeadProtocol,
        limit_concurrency=CONNECTIONS,
        log_level=log_level,
        log_config=None,
        access_log=False,  # the metrics count requests; a line per step would flood the log
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=120,  # longer than the client keeps an idle connection: the client closes first
        timeout_graceful_shutdown=6,  # with the engine's own wait, less than Compose's 10 s before it kills
    )


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises OSError with the next step if the address cannot be used."""
    family, kind, protocol, _, sockaddr = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Inherited by every connection: head and body of an answer are two writes, and between them
        # Nagle's algorithm would wait 40 ms for the client's delayed acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(sockaddr)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        text = f"cannot listen on {host}:{port}: {error.strerror}; choose another port (0: any) or stop its program"
        raise OSError(error.errno, text) from error
    listener.set_inheritable(True)
    return listener


def address(listener: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
