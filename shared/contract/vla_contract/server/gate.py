"""The connections of a service: uvicorn's HTTP/1 protocol, with limits on what comes before there is a request.

uvicorn bounds neither the size nor the time of a head, and its `limit_concurrency` counts idle connections, so that a
thousand of them keep everybody out. Here a head has a limit of bytes and of seconds. Where too many connections wait
for something to come, the one that has waited longest is closed: who sends a whole request is never kept out by who
does not, and the probes are answered even when nothing else is.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from vla_contract.protocol.problems import MEDIA_TYPE, Problem
from vla_contract.server.hosts import HostCheck

log = logging.getLogger("vla_contract")
PROBES = ("/livez", "/readyz")


@dataclass(frozen=True)
class Limits:
    """What connections may cost. A process may have 1,024 files open on many machines: `connections` stays below."""

    head_bytes: int = 32 * 2**10
    head_s: float = 10.0  # from the connection, or the head's first byte, to its end
    heads: int = 256  # connections whose head is not there yet
    connections: int = 900
    spare: int = 64  # beyond those, for probes only
    pipelined: int = 16  # requests sent before the answer to the first

    def __post_init__(self):
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"{name} is {value}; expected more than 0")


class Gate:
    """Which connections wait for their sender, in the order in which they began to.

    probes: a service's further names of /readyz. hosts: the check of `Host` and `Origin`, None without one.
    """

    def __init__(self, limits: Limits, probes: Iterable[str] = (), hosts: HostCheck | None = None):
        self.limits, self.probes, self.hosts = limits, (*PROBES, *probes), hosts
        self._heads: dict[Connection, None] = {}
        self._idle: dict[Connection, None] = {}

    def head_begins(self, connection: "Connection") -> None:
        """Notes a connection whose head is not whole, and closes the one that has been so longest if they are many."""
        self._idle.pop(connection, None)
        self._heads[connection] = None
        if len(self._heads) > self.limits.heads:
            self._close(self._heads)

    def idles(self, connection: "Connection") -> None:
        """Notes a connection without a request."""
        self._idle[connection] = None

    def busy(self, connection: "Connection") -> None:
        """Notes that a connection waits for its sender no more: a request is there, or it is closed."""
        self._heads.pop(connection, None)
        self._idle.pop(connection, None)

    def make_room(self, count: int) -> None:
        """Closes a connection that waits for its sender, where `count` of all kinds are too many."""
        if count > self.limits.connections and (self._idle or self._heads):
            self._close(self._idle or self._heads)

    def _close(self, waiting: "dict[Connection, None]") -> None:
        victim = next(iter(waiting))
        self.busy(victim)
        victim.transport.close()


class Connection(HttpToolsProtocol):
    """One connection of a server that shares `gate`."""

    def __init__(self, *arguments, gate: Gate, **named):
        super().__init__(*arguments, **named)
        self._gate, self._limits = gate, gate.limits
        self._in_head, self._head_bytes, self._timer = True, 0, None
        self._refusal: Problem | None = None
        self.requests = 0  # so far
        self.when_lost: Callable[[], None] | None = None  # set for the time of a request by who computes its answer

    def connection_made(self, transport) -> None:
        super().connection_made(transport)
        self._gate.make_room(len(self.connections))
        self._head_goes_on(0)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._head_ends()
        if self.when_lost is not None:
            self.when_lost()
            self.when_lost = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_goes_on(len(data))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        began = self._timer and self._timer.when() - self._limits.head_s
        self._head_ends()
        self._refusal = self._why_not()
        if self._refusal is not None:
            raise self._refusal  # uvicorn then calls send_400_response
        self.requests += 1
        self.scope["vla_contract.connection"] = self
        if began is not None:
            self.scope["vla_contract.began"] = began
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self.when_lost = None
        super().on_response_complete()
        if not self.pipeline and not self.transport.is_closing():
            self._gate.idles(self)

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            self._refuse(self._refusal or Problem("bad-request", msg))

    def _head_goes_on(self, count: int) -> None:
        self._head_bytes += count
        if self._head_bytes > self._limits.head_bytes:
            self._refuse(self._large())
        elif self._timer is None:
            self._timer = self.loop.call_later(self._limits.head_s, self._late)
            self._gate.head_begins(self)

    def _head_ends(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._gate.busy(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _why_not(self) -> Problem | None:
        """Returns what is wrong with a head that is whole, None where nothing is."""
        if sum(len(name) + len(value) for name, value in self.headers) + len(self.url) > self._limits.head_bytes:
            return self._large()
        if self._gate.hosts is not None and (refusal := self._gate.hosts.refusal(self.headers)):
            return refusal
        if len(self.pipeline) >= self._limits.pipelined:
            return Problem("bad-request", f"more than {self._limits.pipelined} requests before the first one's answer")
        over = len(self.connections) - self._limits.connections
        if over > 0 and (over > self._limits.spare or self.url.decode("latin-1") not in self._gate.probes):
            return Problem.retry_after("busy", f"{len(self.connections)} connections are open; ask again later", 1.0)
        return None

    def _large(self) -> Problem:
        return Problem("large-head", f"the head has more than {self._limits.head_bytes} bytes; send fewer headers")

    def _late(self) -> None:
        self._timer = None
        if self._head_bytes:
            detail = f"the head did not arrive within {self._limits.head_s:g} s; send it faster"
            self._refuse(Problem("slow-request", detail))
        else:
            self.transport.close()  # nothing was asked

    def _refuse(self, problem: Problem) -> None:
        """Answers without any application, and closes. After an earlier request's answer only: else it closes."""
        if self.cycle is None or self.cycle.response_complete:
            body = problem.json()
            headers = {
                **problem.headers,
                "Content-Type": MEDIA_TYPE,
                "Content-Length": len(body),
                "Connection": "close",
            }
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            self.transport.write(STATUS_LINE[problem.status] + lines.encode() + b"\r\n" + body)
        self.transport.close()
