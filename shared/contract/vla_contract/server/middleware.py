"""The middleware of a service: token, request id, problem+json, and limits on what a request's body takes."""

import logging
import re
import uuid
from collections.abc import Collection, Mapping, Sequence

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vla_contract.protocol.errors import InvalidObservation
from vla_contract.protocol.problems import MEDIA_TYPE, Problem
from vla_contract.server.auth import ASK_PERSON, TokenCheck, bearer
from vla_contract.server.metrics import Metrics

log = logging.getLogger("vla_contract")
PROBES = ("/livez", "/readyz")
TIMEOUT_S = 30.0  # from a request's head to the end of its body
DRAIN_S = 2.0  # for the rest of a refused body
BUDGET_BYTES = 96 * 2**20  # of all bodies that are arriving or being answered
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


class RequestGuard:
    """ASGI middleware; the application receives a body whole, in one message, when it first asks for it.

    token           required on every path but `probes`
    browser_paths   beginnings of paths on which a browser's password counts as the token
    max_body_bytes  a longer body is answered with 413
    timeout_s       for a body to arrive, from when its head is complete; else 408
    budget_bytes    of all bodies together; beyond it the body that has been arriving longest is answered with 503
    """

    def __init__(
        self,
        app: ASGIApp,
        token: TokenCheck,
        metrics: Metrics,
        max_body_bytes: int,
        *,
        probes: Collection[str] = PROBES,
        browser_paths: tuple[str, ...] = (),
        timeout_s: float = TIMEOUT_S,
        budget_bytes: int = BUDGET_BYTES,
    ):
        self.app, self.token, self.metrics = app, token, metrics
        self.max_body_bytes, self.timeout_s = max_body_bytes, timeout_s
        self.probes, self.browser_paths = probes, browser_paths
        self.budget = Budget(budget_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, path = dict(scope["headers"]), scope["path"]
        request_id = headers.get(b"x-request-id", b"").decode("latin-1")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        body = Body(receive, headers, self.max_body_bytes, self.timeout_s, self.budget)
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            self._check_token(path, headers.get(b"authorization", b""))
            await self.app(scope, body.receive, send_with_id)
        except ClientDisconnect:
            return
        except Exception as error:
            if status:
                raise
            # Not here: a problem in this frame would hold its own traceback, whose frames hold parts of the body.
            await self._answer_error(error, request_id, body, scope, receive, send_with_id)
        finally:
            body.release()
            if status:
                self.metrics.requests.labels(getattr(scope.get("route"), "path", "none"), status).inc()

    async def _answer_error(
        self, error: Exception, request_id: str, body: "Body", scope: Scope, receive: Receive, send: Send
    ) -> None:
        if isinstance(error, Problem):
            problem = error
        elif isinstance(error, InvalidObservation):
            problem = Problem("invalid-observation", str(error))
        else:
            log.error("%s failed, request %s", scope["path"], request_id, exc_info=error)
            problem = Problem("internal", f"the server failed; its log has the traceback under request {request_id}")
        is_read = await body.drain(wait=problem.kind != "slow-request")
        headers = problem.headers if is_read else {**problem.headers, "Connection": "close"}
        response = Response(problem.json(request_id), problem.status, headers, MEDIA_TYPE)
        await response(scope, receive, send)

    def _check_token(self, path: str, authorization: bytes) -> None:
        if path in self.probes:
            return
        for_browser = path.startswith(self.browser_paths)
        if not self.token.allows(bearer(authorization.decode("latin-1")) if for_browser else authorization):
            raise Problem(
                "unauthorized",
                "the request has no token or a wrong one; expected the header Authorization: Bearer <token>",
                ASK_PERSON if for_browser else {"WWW-Authenticate": "Bearer"},
            )


class Budget:
    """The bytes of all bodies of a service. Used on the event loop only."""

    def __init__(self, limit: int):
        self.limit, self.held = limit, 0
        self.arriving: dict[Body, None] = {}

    def spend(self, body: "Body", count: int) -> None:
        """Count bytes of a body that is arriving; beyond the limit, evict the oldest ones, this one included."""
        body.held += count
        self.held += count
        while self.held > self.limit and self.arriving:
            oldest = next(iter(self.arriving))
            del self.arriving[oldest]
            oldest.evicted = True
            oldest.release()
            oldest.scope.cancel()


class Body:
    """The body of one request, and what it counts in the budget."""

    def __init__(self, receive: Receive, headers: Mapping[bytes, bytes], limit: int, timeout_s: float, budget: Budget):
        self._receive, self._headers, self._limit, self._budget = receive, headers, limit, budget
        self._deadline = anyio.current_time() + timeout_s
        self.scope = anyio.CancelScope(deadline=self._deadline)
        self.held, self.evicted, self._requested, self._complete = 0, False, False, False

    async def receive(self) -> Message:
        """Return the whole body as one ASGI message; later calls wait for the client's disconnection.

        Raises Problem: 413 beyond the limit of bytes, 408 at the deadline, 503 where the budget has no room.
        """
        if self._requested:
            return await self._receive()
        self._requested = True
        length = self._headers.get(b"content-length", b"0")
        if int(length) > self._limit:
            raise self._too_large(f"{int(length)} bytes")
        parts: list[bytes] = []
        self._budget.arriving[self] = None
        try:
            with self.scope:
                while not self._complete and not self.evicted:
                    parts.append(await self._next_part())
                    self._budget.spend(self, len(parts[-1]))
                    if self.held > self._limit:
                        raise self._too_large(f"more than {self._limit} bytes")
            whole = b"".join(parts)
        finally:
            self._budget.arriving.pop(self, None)
            parts.clear()  # the traceback of an error would keep them until the rest is drained
        if self.evicted:
            detail = f"bodies of requests take more than {self._budget.limit} bytes; try again, faster or with less"
            raise Problem.retry_after("busy", detail, 1.0)
        if not self._complete:
            raise Problem("slow-request", "the body did not arrive in time; send it faster or send less")
        return {"type": "http.request", "body": whole, "more_body": False}

    async def drain(self, wait: bool) -> bool:
        """Discard the rest, for a while: a client cut off in mid-body may not see the answer. Return whether it came.

        Without `wait`, or where the client waits for "100 Continue", nothing is read.
        """
        left = 4 * self._limit if wait and b"expect" not in self._headers else 0
        with anyio.move_on_after(DRAIN_S):
            while not self._complete and left > 0:
                left -= len(await self._next_part())
        return self._complete

    def release(self) -> None:
        """Return the body's bytes to the budget."""
        self._budget.held -= self.held
        self.held = 0

    async def _next_part(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        self._complete = not message.get("more_body", False)
        return message.get("body", b"")

    def _too_large(self, size: str) -> Problem:
        detail = f"the body has {size}; expected at most {self._limit}: send smaller images or raise the limit"
        return Problem("too-large", detail, max_body_bytes=self._limit)


async def read_body(request: Request, media_types: Sequence[str]) -> bytes:
    """Return the body of a request. Raises Problem (415) before reading it where its Content-Type is not listed."""
    media_type = request.headers.get("content-type", "")
    if media_type.split(";", 1)[0].strip().lower() not in media_types:
        raise Problem(
            "wrong-type",
            f"the body's Content-Type is {media_type[:80]!r}; expected {media_types[0]}",
            {"Accept-Post": media_types[0]},
        )
    return await request.body()
