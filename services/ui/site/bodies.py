"""Read request bodies with limits on size and time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from services.ui.site.problem import PageError
from vla_common import entrypoint

MAX_BYTES = 64 * 2**10
BODY_TIMEOUT_S = 30.0  # for the whole body
UPLOAD_TIMEOUT_S = 120.0  # for a form with files
MAX_FIELDS = 64
NO_ROOM = "the image cannot be stored: the disk of this machine is full; free some space and upload it again"


async def read(receive: Receive) -> bytes:
    """Return the body. Raises Problem if it is too large, too slow or incomplete."""
    try:
        return await asyncio.wait_for(_collect(receive), BODY_TIMEOUT_S)
    except asyncio.TimeoutError:
        raise PageError(408, f"the body did not arrive within {BODY_TIMEOUT_S:g} s") from None


async def _collect(receive: Receive) -> bytes:
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise PageError(400, "the client disconnected")
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MAX_BYTES:
            raise PageError(413, f"the body is too large; expected at most {MAX_BYTES} bytes")
    return bytes(body)


@asynccontextmanager
async def read_form(request: Request, max_bytes: int) -> AsyncIterator[FormData]:
    """Yield a form with its files, which are deleted afterwards; large ones are unnamed files on disk.

    Raises Problem if the body is not a form, too large, too slow or incomplete, or if the disk is full.
    """
    size = 0

    async def receive() -> Message:
        nonlocal size
        message = await request.receive()
        size += len(message.get("body", b""))
        if size > max_bytes:
            raise PageError(413, f"the body is too large; expected at most {max_bytes} bytes")
        return message

    parsing = Request(request.scope, receive).form(max_files=MAX_FIELDS, max_fields=MAX_FIELDS)
    try:
        form = await asyncio.wait_for(parsing, UPLOAD_TIMEOUT_S)
    except asyncio.TimeoutError:
        raise PageError(408, f"the body did not arrive within {UPLOAD_TIMEOUT_S:g} s") from None
    except ClientDisconnect:
        raise PageError(400, "the client disconnected") from None
    except HTTPException as error:
        raise PageError(error.status_code, error.detail) from None
    except OSError as error:
        if not entrypoint.is_full_disk(error):
            raise
        raise PageError(507, NO_ROOM) from None
    try:
        yield form
    finally:
        await form.close()
