"""Reads a request's body under a limit of size and of time, while it arrives."""

import asyncio

from starlette.requests import ClientDisconnect

from vla_contract.problems import Problem

TIMEOUT_S = 30.0  # for the whole body to arrive
_GAP_S = 1.0  # longest pause of a sender whose body is only thrown away


class Body:
    """The body of one request. `complete` tells whether all of it has been read."""

    def __init__(self, receive, headers: dict[bytes, bytes], limit: int, timeout_s: float = TIMEOUT_S):
        self._receive, self._headers, self._limit, self._timeout_s = receive, headers, limit, timeout_s
        self.complete = False

    async def read(self) -> bytes:
        """Returns the body.

        Raises Problem: 413 as soon as more than the limit is announced or has come, 408 when it comes too slowly.
        ClientDisconnect when the sender has gone.
        """
        length = self._headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self._limit:
            raise self._too_large(f"{int(length)} bytes")
        loop, task, late = asyncio.get_running_loop(), asyncio.current_task(), False

        def cancel() -> None:
            nonlocal late
            late = task.cancel()

        timer = loop.call_later(self._timeout_s, cancel)  # a bare timer: this is on the path of every request
        try:
            return await self._collect()
        except asyncio.CancelledError:
            if not late:
                raise
            if hasattr(task, "uncancel"):  # Python 3.11
                task.uncancel()
            detail = f"the body did not arrive within {self._timeout_s:g} s; send it faster or send less"
            raise Problem("slow-request", detail) from None
        finally:
            timer.cancel()

    async def drain(self) -> None:
        """Reads on without keeping anything, up to a limit: a sender cut off in mid-body may not see the answer."""
        left = 0 if b"expect" in self._headers else 4 * self._limit
        try:
            while left > 0 and not self.complete:
                left -= len(await asyncio.wait_for(self._piece(), _GAP_S))
        except (asyncio.TimeoutError, ClientDisconnect):
            return

    async def _collect(self) -> bytes:
        parts, size = [], 0
        while not self.complete:
            parts.append(await self._piece())
            size += len(parts[-1])
            if size > self._limit:
                raise self._too_large(f"more than {self._limit} bytes")
        return parts[0] if len(parts) == 1 else b"".join(parts)

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
