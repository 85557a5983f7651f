"""Reads a request's body under limits of size, of time, and of what all bodies together may hold, while it arrives."""

import asyncio
from collections.abc import Mapping

from starlette.requests import ClientDisconnect

from vla_contract.protocol.problems import Problem

TIMEOUT_S = 30.0  # from the head's first byte to the body's last
DRAIN_S = 2.0  # for a body that is only thrown away
MAX_HELD_BYTES = 96 * 2**20  # of bodies that are arriving or being answered, over all connections


class Budget:
    """The bytes that all bodies hold. Used on the event loop only.

    Past the limit the body that has been arriving for longest gives way, so that who sends at once is not kept out by
    who never ends.
    """

    def __init__(self, limit: int = MAX_HELD_BYTES):
        self.limit, self.held = limit, 0
        self._arriving: dict[Body, None] = {}

    def arrives(self, body: "Body") -> None:
        """Notes that a body has begun to hold bytes."""
        self._arriving[body] = None

    def has_arrived(self, body: "Body") -> None:
        """Notes that a body gives way no more: it is whole, or refused."""
        self._arriving.pop(body, None)

    def make_room(self, body: "Body") -> None:
        """Has other bodies give way. Raises Problem (503) where that is not enough, or this one is the oldest."""
        while self.held > self.limit and self._arriving:
            oldest = next(iter(self._arriving))
            del self._arriving[oldest]
            if oldest is body:
                break
            oldest.give_way()
        if self.held > self.limit:
            raise self.spent()

    def spent(self) -> Problem:
        """Returns the problem that a body which gives way is answered with."""
        detail = f"bodies of requests hold more than {self.limit} bytes together; ask again, faster or with less"
        return Problem.retry_after("busy", detail, 1.0)


class Body:
    """The body of one request. `complete` tells whether all of it has been read."""

    def __init__(self, receive, headers: Mapping[bytes, bytes], limit: int, budget: Budget):
        self._receive, self._headers, self._limit, self._budget = receive, headers, limit, budget
        self._held, self._waiting = 0, None
        self.complete, self._gives_way = False, False

    async def read(self, left_s: float = TIMEOUT_S) -> bytes:
        """Returns the body.

        Raises Problem: 413 as soon as more than the limit is announced or has come, 408 when it is not whole in
        `left_s`, 503 when it has to give way. ClientDisconnect when the sender has gone.
        """
        length = self._headers.get(b"content-length", b"")
        if length.isdigit() and (len(length) > 18 or int(length) > self._limit):
            raise self._too_large(f"{length.decode()[:20]} bytes")
        body = await self._within(left_s, self._collect)
        if body is None:
            if self._gives_way:
                raise self._budget.spent()
            raise Problem("slow-request", "the body did not arrive in time; send it faster or send less")
        return body

    async def drain(self) -> None:
        """Reads on without keeping anything, for a while: a sender cut off in mid-body may not see the answer."""
        if not self.complete and b"expect" not in self._headers:
            await self._within(DRAIN_S, self._discard)

    def give_way(self) -> None:
        """Ends `read` with a 503."""
        self._gives_way = self._waiting is not None and self._waiting.cancel()

    def release(self) -> None:
        """Counts the body's bytes no more. To be called once nobody holds them."""
        self._budget.held -= self._held
        self._held = 0

    async def _within(self, seconds: float, work):
        """Returns what `work()` returns, or None where it was not done in time or had to give way."""
        self._waiting = task = asyncio.current_task()
        late = False

        def cancel() -> None:
            nonlocal late
            late = task.cancel()

        timer = asyncio.get_running_loop().call_later(max(seconds, 0.0), cancel)  # bare: every request has one
        try:
            return await work()
        except asyncio.CancelledError:
            if not late and not self._gives_way:
                raise
            if hasattr(task, "uncancel"):  # Python 3.11
                task.uncancel()
            return None
        finally:
            timer.cancel()
            self._waiting = None

    async def _collect(self) -> bytes:
        piece = await self._piece()
        self._hold(len(piece))
        if self.complete:  # one read: most are
            return piece
        parts = [piece]
        self._budget.arrives(self)
        try:
            while not self.complete:
                parts.append(await self._piece())
                self._hold(len(parts[-1]))
        finally:
            self._budget.has_arrived(self)
        return b"".join(parts)

    async def _discard(self) -> None:
        left = 4 * self._limit
        while left > 0 and not self.complete:
            left -= len(await self._piece())

    def _hold(self, count: int) -> None:
        self._held += count
        self._budget.held += count
        if self._held > self._limit:
            raise self._too_large(f"more than {self._limit} bytes")
        if self._budget.held > self._budget.limit:
            self._budget.make_room(self)

    async def _piece(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        self.complete = not message.get("more_body", False)
        return message.get("body", b"")

    def _too_large(self, found: str) -> Problem:
        return Problem(
            "too-large",
            f"the body has {found}; expected at most {self._limit}: send smaller pictures or raise the limit",
            max_body_bytes=self._limit,
        )
