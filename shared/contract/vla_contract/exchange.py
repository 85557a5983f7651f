"""One request and its answer on plain ASGI: what every route of a service shares.

Each route is an `Endpoint`: token, content type, size limit, request id, metrics and problem+json in one place,
and no validation framework between the socket and the handler.
"""

import asyncio
import logging
import re
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect

from vla_contract.auth import TokenCheck
from vla_contract.errors import InvalidObservation
from vla_contract.metrics import Metrics
from vla_contract.problems import MEDIA_TYPE as PROBLEM_TYPE
from vla_contract.problems import Problem

log = logging.getLogger("vla_contract")
BODY_TIMEOUT_S = 30.0  # for the whole body to arrive
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


@dataclass(eq=False)
class Request:
    """What a handler gets: the body, the sender and the headers it may ask for."""

    body: bytes
    request_id: str
    client: str
    headers: dict[bytes, bytes]


@dataclass(eq=False)
class Answer:
    """What a handler returns."""

    body: bytes
    media_type: str
    status: int = 200


@dataclass(eq=False)
class Endpoint:
    """An ASGI application for one route. `media_types` is empty for a route without a body."""

    route: str
    handler: Callable[[Request], Awaitable[Answer]]
    metrics: Metrics
    token: TokenCheck | None = None
    media_types: tuple[str, ...] = ()
    max_body_bytes: int = 0
    _types: frozenset[bytes] = field(init=False)

    def __post_init__(self):
        self._types = frozenset(name.encode() for name in self.media_types)

    async def __call__(self, scope, receive, send) -> None:
        headers = dict(scope["headers"])
        request_id = _request_id(headers.get(b"x-request-id"))
        extra: list[tuple[bytes, bytes]] = []
        try:
            answer = await self.handler(await self._request(scope, receive, headers, request_id))
        except ClientDisconnect:
            return
        except Exception as error:
            problem = self._problem(error, request_id)
            extra = [(name.encode(), value.encode()) for name, value in problem.headers.items()]
            answer = Answer(problem.json(request_id), PROBLEM_TYPE, problem.status)
        self.metrics.request(self.route, answer.status)
        await _send(send, answer, request_id, extra)

    async def _request(self, scope, receive, headers, request_id) -> Request:
        if self.token is not None and not self.token.allows(headers.get(b"authorization")):
            raise Problem(
                "unauthorized",
                "the request carries no token or a wrong one; expected the header Authorization: Bearer <token>",
                {"WWW-Authenticate": "Bearer", "Connection": "close"},
            )
        host, port = scope.get("client") or ("", 0)
        body = await self._body(receive, headers) if self.media_types else b""
        return Request(body, request_id, f"{host}:{port}", headers)

    async def _body(self, receive, headers: dict[bytes, bytes]) -> bytes:
        media_type = headers.get(b"content-type", b"")
        if media_type.split(b";", 1)[0].strip().lower() not in self._types:
            shown = media_type.decode("latin-1")[:80]
            raise Problem(
                "wrong-type",
                f"the body's Content-Type is {shown!r}; expected {self.media_types[0]}",
                {"Connection": "close", "Accept-Post": self.media_types[0]},
            )
        length = headers.get(b"content-length")
        if length is not None and length.isdigit() and int(length) > self.max_body_bytes:
            await self._drain(receive)
            raise self._too_large(f"{int(length)} bytes")
        message = await receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            body = message.get("body", b"")
        else:
            body = await self._rest(message, receive)
        if len(body) > self.max_body_bytes:
            raise self._too_large(f"{len(body)} bytes")
        return body

    async def _rest(self, message, receive) -> bytes:
        try:
            return await asyncio.wait_for(self._collect(message, receive), BODY_TIMEOUT_S)
        except asyncio.TimeoutError:
            detail = f"the body did not arrive within {BODY_TIMEOUT_S:g} s; send it faster or in smaller requests"
            raise Problem("slow-request", detail, {"Connection": "close"}) from None

    async def _collect(self, message, receive) -> bytes:
        parts, size = [], 0
        while True:
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self.max_body_bytes:
                parts.clear()
                await self._drain(receive)
                raise self._too_large(f"more than {self.max_body_bytes} bytes")
            if not message.get("more_body"):
                return b"".join(parts)
            message = await receive()

    async def _drain(self, receive) -> None:
        """Reads on for a while without keeping anything: a sender cut off in mid-body may never see the answer."""
        left = 4 * self.max_body_bytes
        try:
            while left > 0:
                message = await asyncio.wait_for(receive(), 1.0)
                if message["type"] == "http.disconnect" or not message.get("more_body"):
                    return
                left -= len(message.get("body", b""))
        except asyncio.TimeoutError:
            return

    def _too_large(self, found: str) -> Problem:
        return Problem(
            "too-large",
            f"the body has {found}; expected at most {self.max_body_bytes}: send smaller pictures or raise the limit",
            {"Connection": "close"},
            max_body_bytes=self.max_body_bytes,
        )

    def _problem(self, error: Exception, request_id: str) -> Problem:
        if isinstance(error, Problem):
            return error
        if isinstance(error, InvalidObservation):
            return Problem("invalid-observation", str(error))
        log.error("%s failed, request %s", self.route, request_id, exc_info=error)
        return Problem("internal", f"the server failed; its log has the traceback under request {request_id}")


async def _send(send, answer: Answer, request_id: str, extra: list[tuple[bytes, bytes]]) -> None:
    headers = [
        (b"content-type", answer.media_type.encode()),
        (b"content-length", str(len(answer.body)).encode()),
        (b"x-request-id", request_id.encode()),
        *extra,
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


def _request_id(sent: bytes | None) -> str:
    text = (sent or b"").decode("latin-1")
    return text if _REQUEST_ID.fullmatch(text) else uuid.uuid4().hex
