"""What stands before every page: the login, requests that other sites have sent, and headers that keep a page in."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.ui.site import words
from services.ui.site.login import SAFE, Login, is_of_this_site

PROBES = ("/livez", "/readyz")
OPEN = (*PROBES, "/login")
LOOK = "/static/site/"  # the login has the site's look
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; "
    b"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"same-origin",
    b"content-security-policy": POLICY,
}


class Guard:
    """ASGI middleware: who has not logged in gets the login, and another site's requests change nothing.

    ask: answers a request of somebody who has to log in.
    """

    def __init__(self, app: ASGIApp, login: Login, ask: Callable[[Request], Response]):
        self._app, self._login, self._ask = app, login, ask

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, or passes it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            request = Request(scope)
            inner = self._refusal(request) or self._app
            await inner(scope, receive, _with_headers(send, request))

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = HTTPConnection(scope)
        if self._login.allows(asked) and is_of_this_site(asked):
            await self._app(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _refusal(self, request: Request) -> Response | None:
        if request.method not in SAFE and not is_of_this_site(request):
            return JSONResponse({"detail": "another site has sent this; use the page itself"}, 403)
        if request.url.path in OPEN or request.url.path.startswith(LOOK) or self._login.allows(request):
            return None
        return self._ask(request)


def _with_headers(send: Send, request: Request) -> Send:
    """Return a `send` that adds HEADERS where an answer has none, and the language that was chosen."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            has = {name.lower() for name, _ in message["headers"]}
            added = [(name, value) for name, value in HEADERS.items() if name not in has]
            chosen = words.chosen_by(request)
            added += [(b"set-cookie", chosen)] if chosen else []
            message = {**message, "headers": [*message["headers"], *added]}
        await send(message)

    return send_with_headers
