"""Predict the next request of each client: how long a batch should wait for it.

A client that sends many requests (a worker of an evaluation) takes about equally long between a response and its next
request. A late client (a worker that resets its simulator) delays no batch.
"""

from collections.abc import Callable
from dataclasses import dataclass

from vla_contract.server.tenants import Tenant

RECENT_S = 1.0  # wait for a client without a known pause: this long, or three inferences
LATE = 2.0  # factor of its usual pause, plus SLACK_S: then it is late
SLACK_S = 0.005
MAX_CLIENTS = 512  # remembered


@dataclass(eq=False)
class _Client:
    tenant: Tenant
    since: float  # time.monotonic() of its last answer, or of its last request where that is not answered
    answered: bool = False
    pause_s: float | None = None  # usually, between an answer and the next request
    waits: bool = False  # its request is in the queue

    @property
    def late(self) -> float:
        """When it is late; without a known pause, at once."""
        return self.since + LATE * (self.pause_s or 0.0) + SLACK_S


class Arrivals:
    """The recent clients. Used on the event loop only."""

    def __init__(self) -> None:
        self._clients: dict[str, _Client] = {}

    def asks(self, name: str, now: float, tenant: Tenant) -> None:
        """Record a client's request."""
        client = self._clients.pop(name, None) or _Client(tenant, now)
        if client.answered:
            pause_s = now - client.since
            usual_s = client.pause_s or pause_s
            client.pause_s = usual_s + 0.3 * (min(pause_s, 2 * usual_s) - usual_s)  # an episode's end is an outlier
        client.since, client.answered, client.waits = now, False, True
        self._clients[name] = client  # at the end: the first is the least recent
        while len(self._clients) > MAX_CLIENTS:
            del self._clients[next(iter(self._clients))]

    def leaves_queue(self, name: str) -> None:
        """Record that a client's request left the queue."""
        if name in self._clients:
            self._clients[name].waits = False

    def answered(self, name: str, now: float) -> None:
        """Record a response to a client."""
        if name in self._clients:
            self._clients[name].since, self._clients[name].answered = now, True

    def forget(self, name: str) -> None:
        """Forget a client."""
        self._clients.pop(name, None)

    def due(
        self, now: float, end: float, infer_s: float, waiting: Callable[[Tenant], int] | None = None
    ) -> float:  # fmt: skip
        """Return the time until which a batch should wait: after `now` if a client is expected before `end`.

        waiting: a tenant's waiting jobs; if given, only clients of tenants without any count, and known pauses.
        """
        return max(
            (
                self._due(client, now, end, infer_s)
                for client in self._clients.values()
                if not client.waits and not (waiting and (client.pause_s is None or waiting(client.tenant)))
            ),
            default=now,
        )

    def tenants(self, now: float) -> int:
        """Return the number of tenants with a client that waits, or that is not late."""
        clients = self._clients.values()
        return len({c.tenant for c in clients if c.waits or (c.pause_s is not None and now <= c.late)})

    def _due(self, client: _Client, now: float, end: float, infer_s: float) -> float:
        if client.pause_s is None or not client.answered:
            late = client.since + max(RECENT_S, 3 * infer_s)
        elif client.since + client.pause_s > end:
            return now  # too long
        else:
            late = client.late
        return min(late, end)
