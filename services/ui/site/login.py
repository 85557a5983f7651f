"""Login: a cookie for browsers, the token for programs; and the middleware that requires it for every page."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.ui.site import texts
from vla_contract.server.auth import TokenCheck, bearer

SESSION_S = 7 * 86400.0
SHARED_S = 600.0  # a one-time login is valid for so long
MAX_SHARED = 100
SAFE = ("GET", "HEAD", "OPTIONS")
OPEN = ("/livez", "/readyz", "/login")
STYLES = "/static/site/"  # of the login page
SHARED = "/login/"  # one-time logins
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; "
    b"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"same-origin",
    b"content-security-policy": POLICY,
}


class Login:
    """Login sessions of a site. Without a token, pages are open and no user is logged in.

    A session is its expiry time, signed with a key derived from the token: it survives a restart and becomes invalid
    with another token. The cookie's name depends on the token, since browsers send cookies to all ports of a machine.
    """

    def __init__(self, token: str | None):
        self._check = TokenCheck(token)
        # scrypt: with HMAC alone, the token could be guessed from a cookie within hours
        self._key = hashlib.scrypt((token or "").encode(), salt=b"vlalab session", n=2**14, r=8, p=1)
        self._shared: dict[bytes, float] = {}  # hash of a one-time login -> when it ends
        self._ended: set[str] = set()  # logged out; until this process ends
        self.cookie = f"vlalab-{self._sign('name')[:8]}"

    @property
    def required(self) -> bool:
        """Whether the site has a token."""
        return self._check.required

    def is_logged_in(self, request: HTTPConnection) -> bool:
        """Return whether a request has a valid cookie or the token itself."""
        has_cookie = self._is_valid(request.cookies.get(self.cookie, ""))
        return self.required and (has_cookie or self._check.allows(bearer(request.headers.get("authorization", ""))))

    def begin(self, password: str) -> str | None:
        """Return a new session's cookie, or None for a wrong password."""
        is_valid = self.required and self._check.allows(b"Bearer " + password.encode("utf-8", "replace"))
        return self._session() if is_valid else None

    def share(self) -> str:
        """Return a new one-time login, valid for SHARED_S; it says nothing about the token."""
        code, now = secrets.token_urlsafe(16), time.monotonic()
        valid = {digest: end for digest, end in self._shared.items() if end > now}
        self._shared = dict([*valid.items()][1 - MAX_SHARED :])
        self._shared[_digest(code)] = now + SHARED_S
        return code

    def begin_shared(self, code: str) -> str | None:
        """Return a new session's cookie for a one-time login, or None if it was used, is over or is none."""
        is_valid = self.required and self._shared.pop(_digest(code), 0.0) > time.monotonic()
        return self._session() if is_valid else None

    def _session(self) -> str:
        session = f"{int(time.time() + SESSION_S)}.{secrets.token_hex(8)}"
        return f"{session}.{self._sign(session)}"

    def end(self, request: HTTPConnection) -> None:
        """End the session of a request."""
        session = request.cookies.get(self.cookie, "")
        if self._is_valid(session):
            self._ended.add(session)

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), "sha256").hexdigest()

    def _is_valid(self, session: str) -> bool:
        text, _, signature = session.rpartition(".")
        is_signed = hmac.compare_digest(self._sign(text).encode(), signature.encode())
        return is_signed and session not in self._ended and int(text.partition(".")[0]) > time.time()


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "replace")).digest()


def is_of_this_site(request: HTTPConnection) -> bool:
    """Return whether a request is not cross-site.

    Browsers send Sec-Fetch-Site, else Origin. A request without both is not from a browser, so it sends no cookies
    automatically.
    """
    fetch_site = request.headers.get("sec-fetch-site")
    if fetch_site is not None:
        return fetch_site in ("same-origin", "none")
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")


class Guard:
    """ASGI middleware: requires the login, rejects cross-site requests that change anything, adds security headers.

    login_response: returns the answer to a request without login.
    """

    def __init__(self, app: ASGIApp, login: Login, login_response: Callable[[Request], Response]):
        self._app, self._login, self._login_response = app, login, login_response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request or pass it on."""
        if scope["type"] == "websocket":  # no page has any
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        path, inner = request.url.path, self._app
        is_open = not self._login.required or path in OPEN or path.startswith((STYLES, SHARED))
        if request.method not in SAFE and not is_of_this_site(request):
            inner = JSONResponse({"detail": "cross-site request rejected; use the page itself"}, 403)
        elif not is_open and not self._login.is_logged_in(request):
            inner = self._login_response(request)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                added = [(name, value) for name, value in HEADERS.items() if name not in present]
                if cookie := texts.language_cookie(request):
                    added.append((b"set-cookie", cookie))
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        await inner(scope, receive, send_with_headers)
