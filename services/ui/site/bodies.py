"""The body of a request, read whole within bounds of size and time."""

from __future__ import annotations

import asyncio

from starlette.types import Receive

MAX_BYTES = 64 * 2**10
WHOLE_S = 30.0  # for all of it to arrive


class Refused(Exception):
    """A request that is not let in: the status and the sentence it is answered with."""

    def __init__(self, status: int, why: str):
        super().__init__(why)
        self.status, self.why = status, why


async def read(receive: Receive) -> bytes:
    """Returns the body. Raises Refused for one that is too large, too slow or cut off."""
    try:
        return await asyncio.wait_for(_collect(receive), WHOLE_S)
    except asyncio.TimeoutError:
        raise Refused(408, f"the body did not arrive within {WHOLE_S:g} s") from None


async def _collect(receive: Receive) -> bytes:
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "the sender has gone")
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MAX_BYTES:
            raise Refused(413, f"the body is too large; expected at most {MAX_BYTES} bytes")
    return bytes(body)
