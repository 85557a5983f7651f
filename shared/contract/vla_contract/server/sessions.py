"""What a stateful policy's service knows of its sessions: the last step and answer of each.

Used on the event loop only. A request that is sent again (same X-Request-Id) gets the first one's answer, so a
repeat after a broken connection does not move the policy two steps on.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vla_contract.protocol.problems import Problem
from vla_contract.protocol.types import Observation

MAX_SESSIONS = 4096
IDLE_S = 900.0  # an evaluator may wait five minutes for a policy, and a step takes a fraction of a second


@dataclass(eq=False)
class _Session:
    step: int
    request_id: str
    future: "asyncio.Future[Any]"
    before: "_Session | None" = None
    used: float = field(default_factory=time.monotonic)


class SessionTable:
    """Sessions in the order of last use.

    The longest unused one is dropped and `forget` is told past `limit`, and once it has not moved for `idle_s`: its
    sender was killed and could not say that it ended.
    """

    def __init__(self, forget: Callable[[str], object], limit: int = MAX_SESSIONS, idle_s: float = IDLE_S):
        self._forget, self._limit, self._idle_s = forget, limit, idle_s
        self._known: OrderedDict[str, _Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def answered(self, observation: Observation, request_id: str) -> "asyncio.Future[Any] | None":
        """Returns the future of the same request's earlier arrival, or None for a new one.

        Raises Problem (409) for a step > 0 of an unknown session, or one that does not go on from the last.
        """
        known = self._known.get(observation.session)
        if known is not None and known.request_id == request_id and known.step == observation.step:
            return known.future
        if observation.step == 0:
            return None
        if known is None:
            raise Problem(
                "session-lost",
                f"session {observation.session!r} is unknown here and step is {observation.step}, not 0; "
                "the service may have been restarted: start the episode again",
            )
        if observation.step <= known.step:
            raise Problem(
                "session-lost",
                f"session {observation.session!r} is at step {known.step} already and {observation.step} was asked "
                "for; steps only go up: start the episode again under a new session",
            )
        return None

    def asked(self, observation: Observation, request_id: str, future: "asyncio.Future[Any]") -> None:
        """Notes a request that is on its way to the policy."""
        entry = _Session(observation.step, request_id, future, self._known.get(observation.session))
        self._known[observation.session] = entry
        self._known.move_to_end(observation.session)
        future.add_done_callback(lambda done: self._done(observation.session, entry))
        self._drop_the_longest_unused(entry.used)

    def _drop_the_longest_unused(self, now: float) -> None:
        while self._known:
            session, entry = next(iter(self._known.items()))
            if len(self._known) <= self._limit and (now - entry.used < self._idle_s or not entry.future.done()):
                return
            self.drop(session)
            self._forget(session)

    def beginning(self, prefix: str) -> list[str]:
        """Returns the sessions whose names begin so."""
        return [session for session in self._known if session.startswith(prefix)]

    def drop(self, session: str) -> None:
        """Forgets a session."""
        self._known.pop(session, None)

    def _done(self, session: str, entry: _Session) -> None:
        before, entry.before = entry.before, None
        error = None if entry.future.cancelled() else entry.future.exception()
        if self._known.get(session) is not entry or (error is None and not entry.future.cancelled()):
            return
        if before is not None and isinstance(error, Problem) and error.kind == "expired":
            self._known[session] = before  # it never reached the policy
        else:
            self.drop(session)  # the policy may or may not have moved on: nobody can tell
            self._forget(session)
