"""When clients will ask next: how long it is worth holding a batch back for clients that are expected.

A client that asks again and again (a worker of an evaluation) takes about equally long between an answer and its next
request. So it is known when it is due, and when it is late: a worker that resets its simulator keeps nobody waiting.
"""

from dataclasses import dataclass

RECENT_S = 1.0  # a client without a known pause is expected this long, or three inferences
LATE = 2.0  # times its usual pause, and SLACK_S: then it is not expected any more
SLACK_S = 0.005
MAX_CLIENTS = 512  # remembered


@dataclass(eq=False)
class _Client:
    since: float  # time.monotonic() of its last answer, or of its last request where that is not answered
    answered: bool = False
    pause_s: float | None = None  # usually, between an answer and the next request
    waits: bool = False  # its request is in the queue


class Arrivals:
    """The clients seen lately. Used on the event loop only."""

    def __init__(self) -> None:
        self._clients: dict[str, _Client] = {}

    def asks(self, name: str, now: float) -> None:
        """Notes that a client's request has come."""
        client = self._clients.pop(name, None) or _Client(now)
        if client.answered:
            pause_s = now - client.since
            known_s = client.pause_s or pause_s
            client.pause_s = known_s + 0.3 * (min(pause_s, 2 * known_s) - known_s)  # an episode's end is no habit
        client.since, client.answered, client.waits = now, False, True
        self._clients[name] = client  # at the end: the first is the one longest unseen
        while len(self._clients) > MAX_CLIENTS:
            del self._clients[next(iter(self._clients))]

    def leaves_queue(self, name: str) -> None:
        """Notes that a client's request waits no more."""
        if name in self._clients:
            self._clients[name].waits = False

    def answered(self, name: str, now: float) -> None:
        """Notes that a client gets its answer now."""
        if name in self._clients:
            self._clients[name].since, self._clients[name].answered = now, True

    def forget(self, name: str) -> None:
        """Expects a client no more."""
        self._clients.pop(name, None)

    def due(self, now: float, end: float, infer_s: float) -> float:
        """Returns until when to wait for others: past `now` where somebody is expected before `end`."""
        return max(
            (self._due(client, now, end, infer_s) for client in self._clients.values() if not client.waits), default=now
        )

    def _due(self, client: _Client, now: float, end: float, infer_s: float) -> float:
        if client.pause_s is None or not client.answered:
            late = client.since + max(RECENT_S, 3 * infer_s)
        elif client.since + client.pause_s > end:
            return now  # too long
        else:
            late = client.since + LATE * client.pause_s + SLACK_S
        return min(late, end)
