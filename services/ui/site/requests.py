"""Errors of requests, and their bodies with limits on size and time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from vla_common import entrypoint

MAX_BYTES = 64 * 2**10
BODY_TIMEOUT_S = 30.0  # for the whole body
UPLOAD_TIMEOUT_S = 120.0  # for a form with files
MAX_FIELDS = 64
NO_ROOM = "the image cannot be stored: the disk of this machine is full; free some space and upload it again"


class PageError(Exception):
    """A rejected or failed request: HTTP status and reason. It becomes a page or JSON with the reason."""

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status, self.reason = status, reason


class NotFound(PageError):
    """The requested object does not exist or is not public."""

    def __init__(self, reason: str):
        super().__init__(404, reason)


class ServiceUnavailable(PageError):
    """Another service does not respond (status None: 502) or answers with an error."""

    def __init__(self, name: str, reason: str, status: int | None = None):
        super().__init__(status or 502, reason)
        self.name, self.answers = name, status is not None


async def read(request: Request) -> bytes:
    """Return the body. Raises PageError if it is too large, too slow or incomplete."""
    with _arrival(BODY_TIMEOUT_S):
        body: bytes = await _limited(request, MAX_BYTES).body()
    return body


@asynccontextmanager
async def read_form(request: Request, max_bytes: int) -> AsyncIterator[FormData]:
    """Yield a form with its files, which are deleted afterwards; large ones are unnamed files on disk.

    Raises PageError if the body is not a form, too large, too slow or incomplete, or if the disk is full.
    """
    try:
        with _arrival(UPLOAD_TIMEOUT_S):
            form = await _limited(request, max_bytes).form(max_files=MAX_FIELDS, max_fields=MAX_FIELDS)
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


def _limited(request: Request, max_bytes: int) -> Request:
    """Return the request with a limit on its body."""
    size = 0

    async def receive() -> Message:
        nonlocal size
        message = await request.receive()
        size += len(message.get("body", b""))
        if size > max_bytes:
            raise PageError(413, f"the body is too large; expected at most {max_bytes} bytes")
        return message

    return Request(request.scope, receive)


@contextmanager
def _arrival(timeout_s: float) -> Iterator[None]:
    try:
        with anyio.fail_after(timeout_s):
            yield
    except TimeoutError:
        raise PageError(408, f"the body did not arrive within {timeout_s:g} s") from None
    except ClientDisconnect:
        raise PageError(400, "the client disconnected") from None
