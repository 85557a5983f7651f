"""One request and its answer on plain ASGI: what every route of a service shares.

Each route is an `Endpoint`: token, content type, size limit, request id, metrics and problem+json in one place,
and no validation framework between the socket and the handler.
"""

import asyncio
import logging
import re
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import ClientDisconnect

from vla_contract.protocol.errors import InvalidObservation
from vla_contract.protocol.problems import MEDIA_TYPE as PROBLEM_TYPE
from vla_contract.protocol.problems import Problem
from vla_contract.server.auth import ASK_PERSON, TokenCheck, bearer
from vla_contract.server.body import TIMEOUT_S, Body, Budget
from vla_contract.server.metrics import Metrics

log = logging.getLogger("vla_contract")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


@dataclass(eq=False)
class Request:
    """What a handler gets: the body, the sender and the headers it may ask for."""

    body: bytes
    request_id: str
    client: str
    headers: dict[bytes, bytes]
    connection: Any = None  # of gate.py: its `when_lost` is called when the sender has gone; None on other servers


@dataclass(eq=False)
class Answer:
    """What a handler returns. `then` is called once it is sent: for what the sender need not wait for."""

    body: bytes
    media_type: str
    status: int = 200
    then: Callable[[], None] | None = None


@dataclass(eq=False)
class Endpoint:
    """An ASGI application for one route. `media_types` is empty for a route without a body.

    `admit` is called before a body is read and raises the Problem that keeps the request out: what is refused costs no
    more than its head. `budget` is shared by all routes whose bodies must not hold too much together.
    """

    route: str
    handler: Callable[[Request], Awaitable[Answer]]
    metrics: Metrics
    token: TokenCheck | None = None
    media_types: tuple[str, ...] = ()
    max_body_bytes: int = 0
    body_timeout_s: float = TIMEOUT_S
    admit: Callable[[], object] | None = None
    budget: Budget = field(default_factory=Budget)
    for_people: bool = False  # a browser may ask for the token, as a password
    _types: frozenset[bytes] = field(init=False)

    def __post_init__(self):
        self._types = frozenset(name.encode() for name in self.media_types)

    async def __call__(self, scope, receive, send) -> None:
        headers = dict(scope["headers"])
        request_id = _request_id(headers.get(b"x-request-id"))
        body = Body(receive, headers, self.max_body_bytes, self.budget)
        extra: list[tuple[bytes, bytes]] = []
        try:
            self._check_token(headers)
            if self.admit is not None:
                self.admit()
            content = await self._content(body, scope, headers)
            host, port = scope.get("client") or ("", 0)
            connection = scope.get("vla_contract.connection")
            answer = await self.handler(Request(content, request_id, f"{host}:{port}", headers, connection))
        except ClientDisconnect:
            return
        except Exception as error:
            problem = self._problem(error, request_id)
            extra = [(name.encode(), value.encode()) for name, value in problem.headers.items()]
            answer = Answer(problem.json(request_id), PROBLEM_TYPE, problem.status)
            if self._types and not await _drained(body, problem):
                extra.append((b"connection", b"close"))
        finally:
            body.release()
        await _send(send, answer, request_id, extra)
        asyncio.get_running_loop().call_soon(self._afterwards, answer)  # uvloop writes at the end of this turn

    def _afterwards(self, answer: Answer) -> None:
        self.metrics.request(self.route, answer.status)
        if answer.then is not None:
            answer.then()

    def _check_token(self, headers: dict[bytes, bytes]) -> None:
        sent = headers.get(b"authorization", b"")
        sent = bearer(sent.decode("latin-1")) if self.for_people else sent
        if self.token is not None and not self.token.allows(sent):
            raise Problem(
                "unauthorized",
                "the request carries no token or a wrong one; expected the header Authorization: Bearer <token>",
                ASK_PERSON if self.for_people else {"WWW-Authenticate": "Bearer"},
            )

    async def _content(self, body: Body, scope: dict, headers: dict[bytes, bytes]) -> bytes:
        if not self._types:
            return b""
        media_type = headers.get(b"content-type", b"")
        if media_type.split(b";", 1)[0].strip().lower() not in self._types:
            shown = media_type.decode("latin-1")[:80]
            raise Problem(
                "wrong-type",
                f"the body's Content-Type is {shown!r}; expected {self.media_types[0]}",
                {"Accept-Post": self.media_types[0]},
            )
        began = scope.get(
            "vla_contract.began"
        )  # set where the head came in pieces: the deadline is for all of a request
        late_s = 0.0 if began is None else asyncio.get_running_loop().time() - began
        return await body.read(self.body_timeout_s - late_s)

    def _problem(self, error: Exception, request_id: str) -> Problem:
        if isinstance(error, Problem):
            return error
        if isinstance(error, InvalidObservation):
            return Problem("invalid-observation", str(error))
        log.error("%s failed, request %s", self.route, request_id, exc_info=error)
        return Problem("internal", f"the server failed; its log has the traceback under request {request_id}")


async def _drained(body: Body, problem: Problem) -> bool:
    """Returns whether nothing of the body is left to come. One that came too slowly is not waited for again."""
    if problem.kind != "slow-request":
        with suppress(ClientDisconnect):
            await body.drain()
    return body.complete


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
