"""A connection to another project's policy server; every failure becomes a one-line error.

`OpenpiServer` speaks openpi's protocol (openpi@15a9616a src/openpi/serving/websocket_policy_server.py): a websocket on
which the server sends its metadata first and then answers each observation with one message. A text frame is the
traceback of an error; the server closes after it.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from services.bridge.wire import MAX_BYTES, ProtocolError, pack, short, unpack
from vla_contract import ContractError, PolicyLost
from vla_contract.client.transport import CONNECT_S, probe
from vla_contract.protocol.tokens import check_token

GATEWAYS = (502, 503, 504)  # from a proxy whose server is not running
CLOSE_S = 1.0


class IncompatibleServer(ContractError):
    """The server speaks another protocol; waiting does not help."""


class AnswerTimeout(PolicyLost):
    """The server is connected and did not answer in time."""


class ServerFailed(Exception):
    """The server answered with an error message of its own."""


class PolicyConnection:
    """A websocket to a policy server at a ws:// or wss:// address. Not safe to share between threads.

    hello_s   timeout of the handshake and of the server's first message
    answer_s  timeout of one answer; the first, which may compile the model, has its own (FIRST_S)
    key       sent as `Authorization: Api-Key …`, as openpi's client does

    Raises ValueError for an invalid address.
    """

    protocol = "openpi's protocol"

    def __init__(self, url: str, key: str | None = None, hello_s: float = 60.0, answer_s: float = 120.0):
        self.url, self.hello_s, self.answer_s, self.key = check_address(url), hello_s, answer_s, key
        self._headers = {"Authorization": f"Api-Key {check_token('VLALAB_BRIDGE_KEY', key)}"} if key else {}
        self._connection: ClientConnection | None = None

    @property
    def is_open(self) -> bool:
        """Whether a connection was opened and not closed on this side."""
        return self._connection is not None

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(OSError, ConnectionClosed):
                connection.close()

    def _open(self) -> ClientConnection:
        try:
            return connect(
                self.url,
                sock=self._socket(),
                compression=None,
                proxy=None,
                max_size=MAX_BYTES,
                open_timeout=self.hello_s,
                close_timeout=CLOSE_S,
                ping_interval=None,  # a computing server answers no ping; TCP keepalive probes instead
                additional_headers=self._headers,
            )
        except InvalidStatus as error:
            raise self._handshake_error(error) from error
        except InvalidMessage as error:  # not even HTTP
            if isinstance(error.__cause__, EOFError):
                raise PolicyLost(f"{self.url} closed the connection without an answer") from error
            raise IncompatibleServer(
                f"{self.url} is not a websocket server: {_reason(error.__cause__ or error)}"
            ) from error
        except InvalidHandshake as error:
            raise IncompatibleServer(f"{self.url} is not a websocket server: {_reason(error)}") from error
        except ssl.SSLError as error:
            raise IncompatibleServer(f"TLS connection to {self.url} failed: {_reason(error)}") from error
        except (OSError, EOFError) as error:  # TimeoutError is an OSError
            raise PolicyLost(f"no answer from {self.url}: {_reason(error)}") from error

    @contextmanager
    def _reading_hello(self, timeout_text: str, protocol: str) -> Iterator[None]:
        """Guard the read of a new connection's first message: on any failure close it and raise a one-line error.

        Raises PolicyLost if the server closed it, else IncompatibleServer. timeout_text: what did not arrive.
        """
        try:
            yield
        except TimeoutError as error:
            self.close()
            raise IncompatibleServer(
                f"{self.url} accepted the connection and {timeout_text}: it speaks another protocol, or hangs"
            ) from error
        except ConnectionClosed as error:
            self.close()
            raise self._closed(error) from error
        except ProtocolError as error:
            self.close()
            raise IncompatibleServer(f"{self.url} does not speak {protocol}: {error}") from error

    @contextmanager
    def _awaiting_answer(self, within_s: float) -> Iterator[None]:
        """While an answer is waited for: whatever goes wrong closes the connection, since a later answer would be
        another's. Raises PolicyLost where the server goes away, AnswerTimeout where it stays; others pass.
        """
        try:
            yield
        except TimeoutError as error:
            self.close()
            raise AnswerTimeout(f"{self.url} gave no answer within {within_s:g} s") from error
        except ConnectionClosed as error:
            self.close()
            raise self._closed(error) from error
        except BaseException:
            self.close()
            raise

    def _socket(self) -> socket.socket:
        parts = urlsplit(self.url)
        port = parts.port or (443 if parts.scheme == "wss" else 80)
        opened = socket.create_connection((parts.hostname or "", port), timeout=CONNECT_S)
        probe(opened)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.settimeout(None)
        return opened

    def _handshake_error(self, error: InvalidStatus) -> Exception:
        status = error.response.status_code
        if status in GATEWAYS:
            return PolicyLost(f"{self.url} answered HTTP {status}: the server behind the proxy is not running")
        if status in (401, 403):
            return IncompatibleServer(
                f"{self.url} answered HTTP {status}; set VLALAB_BRIDGE_KEY to the key it requires"
            )
        if "problem+json" in error.response.headers.get("Content-Type", ""):
            plain = self.url.replace("ws", "http", 1)
            return IncompatibleServer(f"{self.url} is a service of the lab's own contract; give its address as {plain}")
        return IncompatibleServer(
            f"{self.url} answered HTTP {status} and no websocket handshake; expected a server of {self.protocol}"
        )

    def _closed(self, error: ConnectionClosed) -> PolicyLost:
        frame = error.rcvd
        reason = (
            f"code {frame.code}{f', {short(frame.reason)}' if frame.reason else ''}" if frame else "without a reason"
        )
        return PolicyLost(f"{self.url} closed the connection: {reason}")


class OpenpiServer(PolicyConnection):
    """openpi's policy server."""

    def connect(self) -> dict[str, Any]:
        """Connect and return the server's metadata. Raises PolicyLost or IncompatibleServer."""
        self.close()
        self._connection = self._open()
        timeout_text = f"sent no metadata within {self.hello_s:g} s, which openpi's servers send at once"
        with self._reading_hello(timeout_text, "openpi's protocol, which sends its metadata first"):
            return unpack(self._connection.recv(timeout=self.hello_s))

    def ask(self, message: dict[str, Any], answer_s: float | None = None) -> dict[str, Any]:
        """Send a message on the connection of `connect` and return the answer.

        Raises PolicyLost if the server is gone (AnswerTimeout if it takes too long), ServerFailed for its own error,
        ProtocolError for an invalid answer. Each closes the connection: a late answer would be taken for the next one.
        """
        if self._connection is None:
            raise PolicyLost(f"not connected to {self.url}")
        within_s = answer_s or self.answer_s
        with self._awaiting_answer(within_s):
            self._connection.send(pack(message))
            frame = self._connection.recv(timeout=within_s)
            if isinstance(frame, str):
                raise ServerFailed(f"the server at {self.url} failed: {short(frame)}")
            return unpack(frame)


def check_address(url: str) -> str:
    """Return a ws:// or wss:// address. Raises ValueError for anything else."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("ws", "wss") and bool(parts.hostname) and parts.port != 0 and not parts.username
    except ValueError:  # the port is not a number up to 65535
        is_valid = False
    if not is_valid or not url.isprintable() or " " in url or parts.fragment:
        raise ValueError(f"invalid address {url!r} of a websocket server; expected for example ws://host:8000")
    return url


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return short(str(error) or type(error).__name__)
