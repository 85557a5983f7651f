"""A connection to another project's policy server; every failure becomes a one-line error.

`OpenpiServer` speaks openpi's protocol (openpi@15a9616a src/openpi/serving/websocket_policy_server.py): a websocket on
which the server sends its metadata first and then answers each observation with one message. A text frame is the
traceback of an error; the server closes after it.
"""

from __future__ import annotations

import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from services.bridge.wire import MAX_BYTES, ProtocolError, pack, short, unpack
from vla_contract import ActionChunk, ContractError, PolicyLost
from vla_contract.client.transport import CONNECT_S, probe
from vla_contract.protocol.problems import Problem
from vla_contract.protocol.tokens import check_token

CLOSE_S = 1.0


class IncompatibleServer(ContractError):
    """The server speaks another protocol; waiting does not help."""


class AnswerTimeout(PolicyLost):
    """The server is connected and did not answer in time."""


class ServerFailed(Exception):
    """The server answered with an error of its own; the message goes on after its address."""


def check_status(url: str, status: int) -> None:
    """Raise PolicyLost for the HTTP status of a proxy without its server, IncompatibleServer for a missing key."""
    if status in (502, 503, 504):
        raise PolicyLost(f"{url} answered HTTP {status}: the server behind the proxy is not running")
    if status in (401, 403):
        raise IncompatibleServer(f"{url} answered HTTP {status}; set VLALAB_BRIDGE_KEY to the key it requires")


def outcome(url: str, infer: Callable[[], np.ndarray]) -> ActionChunk | Exception:
    """Return the actions of `infer` as a chunk, or the contract's error for what is wrong with the server at `url`."""
    try:
        return ActionChunk(infer())
    except PolicyLost as error:
        return error
    except IncompatibleServer as error:
        return PolicyLost(str(error))
    except ServerFailed as error:
        return Problem("policy-failed", f"{url} {error}")
    except ValueError as error:  # an invalid message or action
        return Problem("invalid-action", f"{url}: {error}")


class PolicyConnection(ABC):
    """A websocket to a policy server at a ws:// or wss:// address. Not safe to share between threads.

    hello_s   timeout of the handshake and of the server's first message
    answer_s  timeout of one answer; the first, which may compile the model, has its own (FIRST_S)
    key       sent as `Authorization: Api-Key …`, as openpi's client does

    Raises ValueError for an invalid address. A protocol's class has `_hello` and `_answer`.
    """

    protocol: str  # its name, and what the server's first message is
    silence: str  # what a server that says nothing does not do

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

    def connect(self) -> dict[str, Any]:
        """Connect and return the server's first message: its metadata or hello.

        Raises PolicyLost if it does not answer or closes the connection, else IncompatibleServer.
        """
        self.close()
        self._connection = self._open()
        try:
            return self._hello(self._connection)
        except TimeoutError as error:
            self.close()
            problem = f"{self.url} accepted the connection and {self.silence} within {self.hello_s:g} s"
            raise IncompatibleServer(f"{problem}: it speaks another protocol, or hangs") from error
        except ConnectionClosed as error:
            self.close()
            raise self._closed(error) from error
        except ProtocolError as error:
            self.close()
            raise IncompatibleServer(f"{self.url} does not speak {self.protocol}: {error}") from error

    def send(self, frame: bytes) -> None:
        """Send a message. Raises PolicyLost, which closes the connection."""
        if self._connection is None:
            raise PolicyLost(f"not connected to {self.url}")
        try:
            self._connection.send(frame)
        except ConnectionClosed as error:
            self.close()
            raise self._closed(error) from error

    def receive(self, answer_s: float | None = None) -> dict[str, Any]:
        """Return the answer to the last observation.

        Raises PolicyLost if the server is gone (AnswerTimeout if it takes too long), ServerFailed for its own error,
        ProtocolError for an invalid answer. Each closes the connection: a late answer would be taken for the next one.
        """
        if self._connection is None:
            raise PolicyLost(f"not connected to {self.url}")
        within_s = answer_s or self.answer_s
        try:
            return self._answer(self._connection.recv(timeout=within_s))
        except TimeoutError as error:
            self.close()
            raise AnswerTimeout(f"{self.url} gave no answer within {within_s:g} s") from error
        except ConnectionClosed as error:
            self.close()
            raise self._closed(error) from error
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _hello(self, connection: ClientConnection) -> dict[str, Any]:
        """Exchange the first messages; return the server's."""

    @abstractmethod
    def _answer(self, frame: bytes | str) -> dict[str, Any]:
        """Return the answer in a frame. Raises ServerFailed and ProtocolError."""

    def _open(self) -> ClientConnection:
        parts = urlsplit(self.url)
        port = parts.port or (443 if parts.scheme == "wss" else 80)
        try:
            opened = socket.create_connection((parts.hostname or "", port), timeout=CONNECT_S)
            probe(opened)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.settimeout(None)
            return connect(
                self.url,
                sock=opened,
                compression=None,
                proxy=None,
                max_size=MAX_BYTES,
                open_timeout=self.hello_s,
                close_timeout=CLOSE_S,
                ping_interval=None,  # a computing server answers no ping; TCP keepalive probes instead
                additional_headers=self._headers,
            )
        except InvalidStatus as error:
            status, headers = error.response.status_code, error.response.headers
            if "problem+json" in headers.get("Content-Type", ""):
                plain = self.url.replace("ws", "http", 1)
                problem = f"{self.url} is a service of the lab's own contract; give its address as {plain}"
                raise IncompatibleServer(problem) from error
            check_status(self.url, status)
            problem = f"answered HTTP {status} and no websocket handshake; expected a policy server"
            raise IncompatibleServer(f"{self.url} {problem}") from error
        except InvalidMessage as error:  # not even HTTP
            if isinstance(error.__cause__, EOFError):
                raise PolicyLost(f"{self.url} closed the connection without an answer") from error
            reason = _reason(error.__cause__ or error)
            raise IncompatibleServer(f"{self.url} is not a websocket server: {reason}") from error
        except InvalidHandshake as error:
            raise IncompatibleServer(f"{self.url} is not a websocket server: {_reason(error)}") from error
        except ssl.SSLError as error:
            raise IncompatibleServer(f"TLS connection to {self.url} failed: {_reason(error)}") from error
        except (OSError, EOFError) as error:  # TimeoutError is an OSError
            raise PolicyLost(f"no answer from {self.url}: {_reason(error)}") from error

    def _closed(self, error: ConnectionClosed) -> PolicyLost:
        reason = "without a reason"
        if frame := error.rcvd:
            reason = f"code {frame.code}" + (f", {short(frame.reason)}" if frame.reason else "")
        return PolicyLost(f"{self.url} closed the connection: {reason}")


class OpenpiServer(PolicyConnection):
    """openpi's policy server."""

    protocol = "openpi's protocol, which sends its metadata first"
    silence = "sent no metadata, as openpi's servers do at once,"

    def ask(self, message: dict[str, Any], answer_s: float | None = None) -> dict[str, Any]:
        """Send a message and return the answer; raises what `send` and `receive` raise."""
        self.send(pack(message))
        return self.receive(answer_s)

    def _hello(self, connection: ClientConnection) -> dict[str, Any]:
        return unpack(connection.recv(timeout=self.hello_s))

    def _answer(self, frame: bytes | str) -> dict[str, Any]:
        if isinstance(frame, str):
            raise ServerFailed(f"failed: {short(frame)}")
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
