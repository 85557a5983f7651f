"""One connection to another project's policy server, and every way it can go wrong as one sentence.

`Server` speaks openpi's protocol (openpi@15a9616a src/openpi/serving/websocket_policy_server.py): a websocket on which
the server sends its metadata first and then answers each observation with one message; a text frame is the traceback
of an error, after which it closes.
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

from services.bridge.wire import MAX_BYTES, NotTheirs, pack, short, unpack
from vla_contract import ContractError, PolicyLost
from vla_contract.client.transport import CONNECT_S, probe
from vla_contract.protocol.tokens import check_token

GATEWAYS = (502, 503, 504)  # of a proxy whose server is not up
CLOSE_S = 1.0


class WrongServer(ContractError):
    """Who listens there speaks another protocol: waiting changes nothing."""


class TooSlow(PolicyLost):
    """The server is there and has not answered in time."""


class ServerFailed(Exception):
    """The server answered with a text: its own error on what it was asked."""


class Connection:
    """A websocket to a policy server at a ws:// or wss:// address. Not safe to share between threads.

    hello_s   for the handshake, and for what the server says of itself
    answer_s  for one answer; the first of all, for which a model may be compiled, has a time of its own
    key       sent as `Authorization: Api-Key …`, as openpi's client does

    Raises ValueError for an address that is none.
    """

    protocol = "openpi's protocol"

    def __init__(self, url: str, key: str | None = None, hello_s: float = 60.0, answer_s: float = 120.0):
        self.url, self.hello_s, self.answer_s, self.key = check_address(url), hello_s, answer_s, key
        self._headers = {"Authorization": f"Api-Key {check_token('VLALAB_BRIDGE_KEY', key)}"} if key else {}
        self._connection: ClientConnection | None = None

    @property
    def is_open(self) -> bool:
        """Whether a connection was opened and nothing has closed it here."""
        return self._connection is not None

    def close(self) -> None:
        """Closes the connection."""
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
                ping_interval=None,  # a server that computes answers no ping: the kernel asks instead
                additional_headers=self._headers,
            )
        except InvalidStatus as error:
            raise self._refused(error) from error
        except InvalidMessage as error:  # not even HTTP
            if isinstance(error.__cause__, EOFError):
                raise PolicyLost(f"{self.url} closed the connection without a word") from error
            raise WrongServer(f"{self.url} speaks no websocket: {_words(error.__cause__ or error)}") from error
        except InvalidHandshake as error:
            raise WrongServer(f"{self.url} speaks no websocket: {_words(error)}") from error
        except ssl.SSLError as error:
            raise WrongServer(f"{self.url} is not reached by TLS: {_words(error)}") from error
        except (OSError, EOFError) as error:  # TimeoutError is an OSError
            raise PolicyLost(f"nobody answers at {self.url}: {_words(error)}") from error

    @contextmanager
    def _greeting(self, late: str, protocol: str) -> Iterator[None]:
        """While the first message of a new connection is read: closes it where that is none, and says so in words.

        Raises PolicyLost where the server closed it, else WrongServer: `late` says what did not come in time.
        """
        try:
            yield
        except TimeoutError as error:
            self.close()
            raise WrongServer(
                f"{self.url} took the connection and {late}: it speaks another protocol, or is stuck"
            ) from error
        except ConnectionClosed as error:
            self.close()
            raise self._closed(error) from error
        except NotTheirs as error:
            self.close()
            raise WrongServer(f"{self.url} is no server of {protocol}: {error}") from error

    @contextmanager
    def _answering(self, within_s: float) -> Iterator[None]:
        """While an answer is waited for: whatever goes wrong closes the connection, since a later answer would be
        another's. Raises PolicyLost where the server goes away, TooSlow where it stays; others pass.
        """
        try:
            yield
        except TimeoutError as error:
            self.close()
            raise TooSlow(f"{self.url} gave no answer within {within_s:g} s") from error
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

    def _refused(self, error: InvalidStatus) -> Exception:
        status = error.response.status_code
        if status in GATEWAYS:
            return PolicyLost(f"{self.url} answered HTTP {status}: the server behind it is not up")
        if status in (401, 403):
            return WrongServer(f"{self.url} answered HTTP {status}: set VLALAB_BRIDGE_KEY to the key that it asks for")
        if "problem+json" in error.response.headers.get("Content-Type", ""):
            plain = self.url.replace("ws", "http", 1)
            return WrongServer(f"{self.url} is a service of the lab's own contract; give its address as {plain}")
        return WrongServer(
            f"{self.url} answered HTTP {status}, no websocket; expected a policy server of {self.protocol}"
        )

    def _closed(self, error: ConnectionClosed) -> PolicyLost:
        said = error.rcvd
        why = f"code {said.code}{f', {short(said.reason)}' if said.reason else ''}" if said else "without a word"
        return PolicyLost(f"{self.url} closed the connection: {why}")


class Server(Connection):
    """openpi's policy server."""

    def connect(self) -> dict[str, Any]:
        """Returns the metadata of a new connection. Raises PolicyLost where nobody answers, else WrongServer."""
        self.close()
        self._connection = self._open()
        late = f"sent no metadata within {self.hello_s:g} s, which openpi's servers send at once"
        with self._greeting(late, "openpi's protocol, which sends its metadata first"):
            return unpack(self._connection.recv(timeout=self.hello_s))

    def ask(self, message: dict[str, Any], answer_s: float | None = None) -> dict[str, Any]:
        """Returns the answer to a message, on the connection that `connect` has opened.

        Raises PolicyLost where the server goes away (TooSlow where it stays), ServerFailed for its own error, NotTheirs
        for an answer that is no message. After any of them the connection is closed: a later answer would be another's.
        """
        if self._connection is None:
            raise PolicyLost(f"there is no connection to {self.url}")
        within_s = answer_s or self.answer_s
        with self._answering(within_s):
            self._connection.send(pack(message))
            frame = self._connection.recv(timeout=within_s)
            if isinstance(frame, str):
                raise ServerFailed(f"the server at {self.url} failed: {short(frame)}")
            return unpack(frame)


def check_address(url: str) -> str:
    """Returns the address of a websocket server. Raises ValueError for anything else."""
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("ws", "wss") and bool(parts.hostname) and parts.port != 0 and not parts.username
    except ValueError:  # a port that is no number, or beyond 65535
        fine = False
    if not fine or not url.isprintable() or " " in url or parts.fragment:
        raise ValueError(f"{url!r} is no address of a websocket server; expected something like ws://host:8000")
    return url


def _words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return short(str(error) or type(error).__name__)
