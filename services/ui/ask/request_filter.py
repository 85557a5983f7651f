"""An allowlist of requests, before Gradio: what the page's browser asks for passes, and nothing else does.

Gradio serves some seventy routes and reads whatever path a form's value names as soon as one of its checks is off. So
each request is held against a list of what the page uses. Whatever a value says about a file is thrown away but its
path, and that has to lead to an upload.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.ui.ask import images
from services.ui.ask.uploads import Uploads
from services.ui.site.bodies import Refused, read
from vla_common import endings

PLACE = "/ask"  # where Gradio is mounted; what lies elsewhere passes
FILE = "/gradio_api/file="
UPLOAD = "/gradio_api/upload"
CALL = ("data", "fn_index", "session_hash", "trigger_id", "event_data")
META = {"_type": "gradio.FileData"}
MAX_DEPTH = 32
MAX_UPLOAD_BYTES = images.MAX_FILE_BYTES + 64 * 2**10  # with the form around it
UPLOADS_AT_ONCE = 8
NO_ROOM = "the machine of this page has no room for the picture: its disk is full; upload it again once there is some"
UPLOAD_S = 120.0  # for the whole body to arrive
ID = r"[A-Za-z0-9_-]{1,64}"
NAME = r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}"  # of a file that comes with Gradio; `..` is none


@dataclass(frozen=True)
class Route:
    """One kind of request that the page makes. Other query parameters are dropped: Gradio loads states by them."""

    method: str
    path: str  # a regular expression for the whole of it
    query: tuple[str, ...] = ()
    body: str = ""  # what it carries: nothing, "json" or "upload"

    def fits(self, method: str, path: str) -> bool:
        """Returns whether a request takes this route."""
        return method == self.method and re.fullmatch(self.path, path) is not None


ROUTES = (
    Route("POST", "/login"),  # the site answers it; gradio_client asks here
    Route("GET", "/", ("language",)),  # the navigation's
    Route("HEAD", "/"),
    Route("GET", r"/(theme\.css|favicon\.ico|manifest\.json)", ("v",)),
    Route("GET", f"/(assets|static)/({NAME}/){{0,8}}{NAME}"),
    Route("GET", "/config"),
    Route("GET", "/gradio_api/info", ("serialize",)),  # gradio_client asks, as for the two above and below
    Route("POST", "/gradio_api/(queue/join|run/predict)", body="json"),
    Route("GET", "/gradio_api/queue/data", ("session_hash",)),
    Route("POST", UPLOAD, ("upload_id",), body="upload"),
    Route("GET", "/gradio_api/upload_progress", ("upload_id",)),
    Route("GET", re.escape(FILE) + "/.+"),
)


class RequestFilter:
    """ASGI middleware that lets in what `ROUTES` lists of what lies below `PLACE`. Logins are the site's.

    functions: number of each of the page's functions -> how many values it takes.
    """

    def __init__(self, app: ASGIApp, uploads: Uploads, functions: Mapping[int, int]):
        self._app, self._uploads, self._functions = app, uploads, functions
        self._uploading = asyncio.Semaphore(UPLOADS_AT_ONCE)
        self._bodies = {"": self._app, "json": self._json, "upload": self._upload}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, or passes it on."""
        if scope["type"] == "lifespan" or not scope["path"].startswith(f"{PLACE}/"):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._let_in(scope, receive, send)
        else:  # the page has no WebSocket; an answer before the handshake refuses it
            await send({"type": "websocket.close", "code": 1008})

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            path = scope["path"].removeprefix(PLACE)
            route = _route(scope["method"], path)
            inside = {**scope, "query_string": _query(scope["query_string"], route.query)}
            if path.startswith(FILE):
                inside["path"], send = PLACE + FILE + self._upload_at(path.removeprefix(FILE)), _inert(send)
            await self._bodies[route.body](inside, receive, send)
        except Refused as refused:
            headers = {"Retry-After": "1"} if refused.status == 503 else None
            shown = scope["path"] == PLACE + UPLOAD  # Gradio's page shows the body of this answer as it is
            said = PlainTextResponse(refused.why) if shown else JSONResponse({"detail": refused.why})
            answer = Response(said.body, refused.status, headers, said.media_type)
            await answer(scope, receive, send)  # uvicorn drops the body

    def _upload_at(self, path: object) -> str:
        found = self._uploads.find(path)
        if found is None:
            raise Refused(403, "no such upload; it is kept for an hour, so upload the picture again")
        return found

    async def _json(self, scope: Scope, receive: Receive, send: Send) -> None:
        if Request(scope).headers.get("content-type", "").split(";")[0].strip() != "application/json":
            raise Refused(415, "the body is no JSON by its Content-Type; expected application/json")
        body = self._cleaned(await read(receive))
        headers = [
            (name, value) for name, value in scope["headers"] if name not in (b"content-length", b"transfer-encoding")
        ]
        scope["headers"] = [*headers, (b"content-length", str(len(body)).encode())]
        await self._app(scope, _replay(body, receive), _unsuitable(send))

    async def _upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = Request(scope).headers.get("content-length", "")
        if not size.isdigit():
            raise Refused(411, "the upload does not tell its length; send Content-Length")
        if int(size) > MAX_UPLOAD_BYTES:
            raise Refused(413, f"the upload has {size} bytes; expected at most {MAX_UPLOAD_BYTES}")
        if self._uploading.locked():
            raise Refused(503, f"{UPLOADS_AT_ONCE} uploads are under way; try again in a moment")
        async with self._uploading:
            await asyncio.to_thread(self._uploads.make_room, UPLOADS_AT_ONCE * MAX_UPLOAD_BYTES)
            await self._take(scope, _in_time(receive, UPLOAD_S), send)

    async def _take(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Has Gradio keep an upload; its answer waits until it is known that there was room."""
        answer: list[Message] = []

        async def hold(message: Message) -> None:
            answer.append(message)

        try:
            await self._app(scope, receive, hold)
        except OSError as error:
            if not endings.is_full_disk(error):
                raise
            await asyncio.to_thread(self._uploads.drop_parts)
            raise Refused(507, NO_ROOM) from None
        for message in answer:
            await send(message)

    def _cleaned(self, body: bytes) -> bytes:
        """Returns the body written anew, so that nothing is read from it in two ways."""
        try:
            call = self._call(self._clean(json.loads(body)))
            return json.dumps(call, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError):
            raise Refused(400, "the body is no JSON that the page would send") from None

    def _call(self, body: Any) -> dict[str, Any]:
        """Returns a call of one of the page's functions, and no more than that. Raises ValueError for another body."""
        if not isinstance(body, dict) or not isinstance(body.get("data"), list):
            raise ValueError("no call")
        index, session, trigger = (body.get(name) for name in ("fn_index", "session_hash", "trigger_id"))
        if type(index) is not int or len(body["data"]) != self._functions.get(index):
            raise ValueError("no function of the page")
        if (
            not isinstance(session, str)
            or not re.fullmatch(ID, session)
            or not (trigger is None or type(trigger) is int)
        ):
            raise ValueError("no session of a page")
        return {name: body[name] for name in CALL if name in body}

    def _clean(self, value: Any, depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError("too deep")
        if isinstance(value, list):
            return [self._clean(item, depth + 1) for item in value]
        if not isinstance(value, dict):
            return value
        if "path" in value:
            return {"path": self._upload_at(value["path"]), "meta": META}
        return {name: self._clean(item, depth + 1) for name, item in value.items()}


def _route(method: str, path: str) -> Route:
    route = next((route for route in ROUTES if route.fits(method, path)), None)
    if route is None:
        raise Refused(404, "the page has no such route")
    return route


def _replay(body: bytes, receive: Receive) -> Receive:
    """Returns a `receive` that gives a body that was read before, and then goes on as the real one."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return waiting.pop() if waiting else await receive()

    return replayed


def _unsuitable(send: Send) -> Send:
    """Returns a `send` that turns Gradio's 500 into a 422.

    Gradio answers so where a call's value does not suit its component. What the page's own functions fail with they
    show themselves, and Gradio's traceback is in the log either way.
    """

    async def said(message: Message) -> None:
        failed = message["type"] == "http.response.start" and message["status"] == 500
        await send({**message, "status": 422} if failed else message)

    return said


def _in_time(receive: Receive, seconds: float) -> Receive:
    """Returns a `receive` whose sender counts as gone when the body takes longer than that."""
    end = asyncio.get_running_loop().time() + seconds

    async def in_time() -> Message:
        left = end - asyncio.get_running_loop().time()
        try:
            return await asyncio.wait_for(receive(), max(left, 0.0))
        except asyncio.TimeoutError:
            return {"type": "http.disconnect"}

    return in_time


def _inert(send: Send) -> Send:
    """Returns a `send` that marks the answer as a file and no document of the page's: an SVG may hold a script."""
    policy = b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox"
    more = [(b"content-security-policy", policy)]
    more += [(b"x-content-type-options", b"nosniff")]

    async def marked(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return marked


def _query(query: bytes, names: tuple[str, ...]) -> bytes:
    given = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    return urlencode([(name, value) for name, value in given if name in names]).encode()
