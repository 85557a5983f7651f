"""The body of a request, read whole within bounds of size and time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from services.ui.site.problem import Problem
from vla_common import endings

MAX_BYTES = 64 * 2**10
WHOLE_S = 30.0  # for all of it to arrive
UPLOAD_S = 120.0  # and of a form with files
MAX_FIELDS = 64
NO_ROOM = "the machine of this page has no room for the picture: its disk is full; upload it again once there is some"


async def read(receive: Receive) -> bytes:
    """Return the body. Raises Problem for one that is too large, too slow or cut off."""
    try:
        return await asyncio.wait_for(_collect(receive), WHOLE_S)
    except asyncio.TimeoutError:
        raise Problem(408, f"the body did not arrive within {WHOLE_S:g} s") from None


async def _collect(receive: Receive) -> bytes:
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem(400, "the sender has gone")
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MAX_BYTES:
            raise Problem(413, f"the body is too large; expected at most {MAX_BYTES} bytes")
    return bytes(body)


@asynccontextmanager
async def read_form(request: Request, max_bytes: int) -> AsyncIterator[FormData]:
    """Gives a form with its files; large ones lie on disk without a name, and all are gone afterwards.

    Raises Problem for a body that is no form, too large, too slow or cut off, and where the disk is full.
    """
    size = 0

    async def receive() -> Message:
        nonlocal size
        message = await request.receive()
        size += len(message.get("body", b""))
        if size > max_bytes:
            raise Problem(413, f"the body is too large; expected at most {max_bytes} bytes")
        return message

    parsing = Request(request.scope, receive).form(max_files=MAX_FIELDS, max_fields=MAX_FIELDS)
    try:
        form = await asyncio.wait_for(parsing, UPLOAD_S)
    except asyncio.TimeoutError:
        raise Problem(408, f"the body did not arrive within {UPLOAD_S:g} s") from None
    except ClientDisconnect:
        raise Problem(400, "the sender has gone") from None
    except HTTPException as error:
        raise Problem(error.status_code, error.detail) from None
    except OSError as error:
        if not endings.is_full_disk(error):
            raise
        raise Problem(507, NO_ROOM) from None
    try:
        yield form
    finally:
        await form.close()
