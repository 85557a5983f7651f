"""The middleware of a service: token, request id, problem+json, and limits on what a request's body takes."""

import logging
import re
import uuid
from collections.abc import Collection, Sequence

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vla_contract.protocol.errors import InvalidObservation
from vla_contract.protocol.problems import MEDIA_TYPE, Problem
from vla_contract.server.auth import ASK_PERSON, TokenCheck, bearer
from vla_contract.server.metrics import Metrics
from vla_contract.server.tenants import BUSY_RETRY_S, Tenant

log = logging.getLogger("vla_contract")
PROBES = ("/livez", "/readyz")
TIMEOUT_S = 30.0  # from a request's head to the end of its body
BUDGET_BYTES = 96 * 2**20  # of all bodies being received or processed
TENANT_SHARE = 4  # a named token's bodies take at most this part of the budget: one over TENANT_SHARE
CLOSE = {"Connection": "close"}  # else uvicorn reads and discards the rest of a rejected body
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


class RequestGuard:
    """ASGI middleware; the application receives a body whole, in one message, when it first asks for it.

    token           required on every path but `probes`
    admin_paths     403 for a named token: they are about other users
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
        admin_paths: Collection[str] = (),
        browser_paths: tuple[str, ...] = (),
        timeout_s: float = TIMEOUT_S,
        budget_bytes: int = BUDGET_BYTES,
    ):
        self.app, self.token, self.metrics = app, token, metrics
        self.max_body_bytes, self.timeout_s, self.budget_bytes = max_body_bytes, timeout_s, budget_bytes
        self.probes, self.admin_paths, self.browser_paths = probes, admin_paths, browser_paths
        self.probers = Tenant("")  # of requests without a token
        self.arriving: dict[RequestBody, None] = {}  # the oldest first
        self.buffered = 0  # bytes of all bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, path = dict(scope["headers"]), scope["path"].removeprefix(scope.get("root_path", ""))
        request_id = headers.get(b"x-request-id", b"").decode("latin-1")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = uuid.uuid4().hex
        authorization, for_browser = headers.get(b"authorization", b""), path.startswith(self.browser_paths)
        if for_browser:
            authorization = bearer(authorization.decode("latin-1"))
        tenant = self.probers if path in self.probes else self.token.tenant(authorization)
        body = RequestBody(self, receive, headers.get(b"content-length"), tenant or self.probers)
        scope.setdefault("state", {}).update(request_id=request_id, body=body, tenant=tenant)
        status, has_begun = 0, False

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            if tenant is None:
                raise Problem(
                    "unauthorized",
                    "the request has no token or a wrong one; expected the header Authorization: Bearer <token>",
                    ASK_PERSON if for_browser else {"WWW-Authenticate": "Bearer"},
                )
            if tenant.limits is not None and path in self.admin_paths:
                raise Problem(
                    "forbidden", f"token {tenant.name!r} may not read {path}; ask with the service's own token"
                )
            tenant.begin()
            has_begun = True
            await self.app(scope, body.receive, send_with_id)
        except ClientDisconnect:
            pass
        except Exception as error:
            if status:
                raise
            await _problem_response(error, path, request_id)(scope, receive, send_with_id)
        finally:
            self._add(body, -body.buffered)
            if tenant is not None and has_begun:
                tenant.in_progress -= 1
            if status:
                if tenant is not None:
                    tenant.statuses[status] += 1
                self.metrics.requests.labels(getattr(scope.get("route"), "path", "none"), status).inc()

    def count(self, body: "RequestBody", size: int) -> None:
        """Count received bytes; beyond the budget, evict the oldest bodies, possibly this one."""
        self._add(body, size)
        while self.buffered > self.budget_bytes and self.arriving:
            oldest = next(iter(self.arriving))
            del self.arriving[oldest]
            self._add(oldest, -oldest.buffered)
            oldest.evicted = True
            oldest.scope.cancel()

    def _add(self, body: "RequestBody", size: int) -> None:
        body.buffered += size
        body.tenant.body_bytes += size
        self.buffered += size


class RequestBody:
    """The body of one request, counted in the budget of its service."""

    def __init__(self, guard: RequestGuard, receive: Receive, length: bytes | None, tenant: Tenant):
        self._guard, self._receive, self._length, self.tenant = guard, receive, length, tenant
        self.max_bytes = guard.max_body_bytes
        self.scope = anyio.CancelScope(deadline=anyio.current_time() + guard.timeout_s)
        self.buffered, self.evicted, self._requested = 0, False, False

    async def receive(self) -> Message:
        """Return the whole body as one ASGI message; later calls wait for the client's disconnection.

        Raises Problem: 413 beyond the limit of bytes, 429 beyond a named token's part of the budget, 408 at the
        deadline, 503 where the budget has no room.
        """
        if self._requested:
            return await self._receive()
        self._requested = True
        guard, complete = self._guard, False
        body: bytes | bytearray = b""
        if int(self._length or 0) > self.max_bytes:
            raise self._too_large()
        guard.arriving[self] = None
        try:
            with self.scope:
                while not complete and not self.evicted:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect
                    complete = not message.get("more_body", False)
                    part = message.get("body", b"")
                    if not body:
                        body = part  # most arrive whole
                    else:  # a list of small parts would take many times their bytes
                        body = bytearray(body) if isinstance(body, bytes) else body
                        body += part
                    guard.count(self, len(body) - self.buffered)
                    if self.tenant.limits is not None and self.tenant.body_bytes > guard.budget_bytes // TENANT_SHARE:
                        detail = f"token {self.tenant.name!r} has too many bytes in progress; wait for an answer"
                        raise Problem.retry_after("token-limit", detail, BUSY_RETRY_S)
                    if len(body) > self.max_bytes:
                        raise self._too_large()
        finally:
            guard.arriving.pop(self, None)
        if self.evicted:
            detail = f"request bodies take more than {guard.budget_bytes} bytes; retry, faster or with less data"
            raise Problem.retry_after("busy", detail, 1.0)
        if not complete:
            raise Problem("slow-request", "the body did not arrive in time; send it faster or send less", CLOSE)
        return {"type": "http.request", "body": bytes(body), "more_body": False}

    def _too_large(self) -> Problem:
        limit, length = self.max_bytes, int(self._length or 0)
        size = f"{length} bytes" if length else f"more than {limit} bytes"
        detail = f"the body has {size}; expected at most {limit}: send smaller images or raise the limit"
        return Problem("too-large", detail, {} if 0 < length < 4 * limit else CLOSE, max_body_bytes=limit)


def _problem_response(error: Exception, path: str, request_id: str) -> Response:
    """Return the answer to an error. A function: a local variable that keeps the error would keep the body, too."""
    if isinstance(error, InvalidObservation):
        problem = Problem("invalid-observation", str(error))
    elif isinstance(error, Problem):
        problem = error
    else:
        log.error("%s failed, request %s", path, request_id, exc_info=error)
        problem = Problem("internal", f"the server failed; its log has the traceback under request {request_id}")
    return Response(problem.json(request_id), problem.status, problem.headers, MEDIA_TYPE)


async def read_body(request: Request, media_types: Sequence[str], max_bytes: int | None = None) -> bytes:
    """Return the body of a request. Raises Problem (415) before reading it where its Content-Type is not listed.

    max_bytes: a route's own limit, below that of its service; a longer body is answered with 413.
    """
    media_type = request.headers.get("content-type", "")
    if media_type.split(";", 1)[0].strip().lower() not in media_types:
        raise Problem(
            "wrong-type",
            f"the body's Content-Type is {media_type[:80]!r}; expected {media_types[0]}",
            {"Accept-Post": media_types[0]},
        )
    if max_bytes is not None:
        request.state.body.max_bytes = max_bytes
    body: bytes = await request.body()
    return body
