"""The sessions of a stateful policy: the last step and response of each.

Used on the event loop only. A repeated request (same X-Request-Id) gets the first one's response, so a retry after a
broken connection does not advance the policy twice.
"""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vla_contract.protocol.problems import Problem
from vla_contract.protocol.types import Observation
from vla_contract.server.tenants import Tenant

MAX_SESSIONS = 4096
IDLE_S = 900.0  # an evaluator may wait five minutes for a policy, and a step takes a fraction of a second


@dataclass(eq=False)
class _Session:
    step: int
    request_id: str
    future: "asyncio.Future[Any]"
    tenant: Tenant
    before: "_Session | None" = None
    used: float = field(default_factory=time.monotonic)


class SessionTable:
    """Sessions in the order of last use.

    A session is dropped, with a call of `forget`, after `idle_s` without a request: its sender was killed. Beyond
    `limit` sessions the least recently used one of the tenant with the most is dropped.
    """

    def __init__(self, forget: Callable[[str], object], limit: int = MAX_SESSIONS, idle_s: float = IDLE_S):
        self._forget, self._limit, self._idle_s = forget, limit, idle_s
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def answered(self, observation: Observation, request_id: str) -> "asyncio.Future[Any] | None":
        """Return the future of an earlier attempt of this request, None for a new request.

        Raises Problem (409) for step > 0 of an unknown session, and for a step that is not after the last.
        """
        last = self._sessions.get(observation.session)
        if last is not None and last.request_id == request_id and last.step == observation.step:
            return last.future
        if observation.step == 0:
            return None
        if last is None:
            raise Problem(
                "session-lost",
                f"session {observation.session!r} is unknown here and step is {observation.step}, not 0; "
                "the service may have been restarted: restart the episode",
            )
        if observation.step <= last.step:
            raise Problem(
                "session-lost",
                f"session {observation.session!r} is at step {last.step} already and got {observation.step}; "
                "steps must increase: restart the episode with a new session",
            )
        return None

    def record(
        self, observation: Observation, request_id: str, future: "asyncio.Future[Any]", tenant: Tenant
    ) -> None:  # fmt: skip
        """Record a request that was submitted to the policy."""
        entry = _Session(observation.step, request_id, future, tenant, self._sessions.get(observation.session))
        self._sessions[observation.session] = entry
        self._sessions.move_to_end(observation.session)
        future.add_done_callback(lambda done: self._done(observation.session, entry))
        while self._sessions:
            session, oldest = next(iter(self._sessions.items()))
            if len(self._sessions) > self._limit:
                counts = Counter(session.tenant for session in self._sessions.values())
                largest = counts.most_common(1)[0][0]
                session = next(name for name, other in self._sessions.items() if other.tenant is largest)
            elif entry.used - oldest.used < self._idle_s or not oldest.future.done():
                return
            self.drop(session)
            self._forget(session)

    def beginning(self, prefix: str) -> list[str]:
        """Return the sessions with this prefix."""
        return [session for session in self._sessions if session.startswith(prefix)]

    def drop(self, session: str) -> None:
        """Drop a session."""
        self._sessions.pop(session, None)

    def _done(self, session: str, entry: _Session) -> None:
        before, entry.before = entry.before, None
        error = None if entry.future.cancelled() else entry.future.exception()
        if self._sessions.get(session) is not entry or (error is None and not entry.future.cancelled()):
            return
        if before is not None and isinstance(error, Problem) and error.kind in ("expired", "queue-full"):
            self._sessions[session] = before  # the request never reached the policy
        else:
            self.drop(session)  # the policy may have advanced or not
            self._forget(session)
