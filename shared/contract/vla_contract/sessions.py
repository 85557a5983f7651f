"""What a stateful policy's service knows of its sessions: the last step and answer of each.

Used on the event loop only. A request that is sent again (same X-Request-Id) gets the first one's answer, so a
repeat after a broken connection does not move the policy two steps on.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from vla_contract.problems import Problem
from vla_contract.types import Observation

MAX_SESSIONS = 4096


@dataclass(eq=False)
class _Session:
    step: int
    request_id: str
    future: asyncio.Future
    before: "_Session | None" = None


class SessionTable:
    """Sessions in the order of last use; past `limit` the longest unused one is dropped and `forget` is told."""

    def __init__(self, forget: Callable[[str], object], limit: int = MAX_SESSIONS):
        self._forget, self._limit = forget, limit
        self._known: OrderedDict[str, _Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def answered(self, observation: Observation, request_id: str) -> asyncio.Future | None:
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

    def asked(self, observation: Observation, request_id: str, future: asyncio.Future) -> None:
        """Notes a request that is on its way to the policy."""
        entry = _Session(observation.step, request_id, future, self._known.get(observation.session))
        self._known[observation.session] = entry
        self._known.move_to_end(observation.session)
        future.add_done_callback(lambda done: self._done(observation.session, entry))
        while len(self._known) > self._limit:
            self._forget(self._known.popitem(last=False)[0])

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
