"""Middleware for every page: login, rejection of cross-site requests, and security headers."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.ui.site import texts
from services.ui.site.login import SAFE, Login, is_of_this_site

PROBES = ("/livez", "/readyz")
OPEN = (*PROBES, "/login")
LOOK = "/static/site/"  # styles of the login page
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
    """ASGI middleware: requires the login and rejects cross-site requests that change anything.

    login_response: returns the answer to a request without login.
    """

    def __init__(self, app: ASGIApp, login: Login, login_response: Callable[[Request], Response]):
        self._app, self._login, self._login_response = app, login, login_response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request or pass it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            request = Request(scope)
            inner = self._refusal(request) or self._app
            await inner(scope, receive, _with_headers(send, request))

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = HTTPConnection(scope)
        if self._login.allows(connection) and is_of_this_site(connection):
            await self._app(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _refusal(self, request: Request) -> Response | None:
        if request.method not in SAFE and not is_of_this_site(request):
            return JSONResponse({"detail": "cross-site request rejected; use the page itself"}, 403)
        if request.url.path in OPEN or request.url.path.startswith(LOOK) or self._login.allows(request):
            return None
        return self._login_response(request)


def _with_headers(send: Send, request: Request) -> Send:
    """Return a `send` that adds missing HEADERS, and the cookie of a newly selected language."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message["headers"]}
            added = [(name, value) for name, value in HEADERS.items() if name not in present]
            cookie = texts.language_cookie(request)
            added += [(b"set-cookie", cookie)] if cookie else []
            message = {**message, "headers": [*message["headers"], *added]}
        await send(message)

    return send_with_headers
