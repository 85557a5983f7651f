"""Who is logged in: a cookie for browsers, the token itself for programs; and which requests other sites had sent."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from vla_contract.server.auth import TokenCheck, bearer

KEPT_S = 7 * 86400.0
MAX_SESSIONS = 4096  # the oldest goes: nobody fills the memory with logins
SAFE = ("GET", "HEAD", "OPTIONS")


class Login:
    """The sessions of one site. Without a token everybody is in, and nobody is logged in.

    The cookie's name is this process's own, since a browser sends a machine's cookies to all of its ports.
    """

    def __init__(self, token: str | None):
        self._check = TokenCheck(token)
        self._until: OrderedDict[str, float] = OrderedDict()
        self.cookie = f"vlalab-{secrets.token_hex(4)}"

    @property
    def required(self) -> bool:
        """Whether there is a token to log in with."""
        return self._check.required

    def allows(self, request: HTTPConnection) -> bool:
        """Returns whether a request may see the pages."""
        return not self.required or self.is_logged_in(request)

    def is_logged_in(self, request: HTTPConnection) -> bool:
        """Returns whether who asks has given the token: by the login's cookie, or with this very request."""
        if not self.required:
            return False
        session = request.cookies.get(self.cookie, "")
        if self._until.get(session, 0.0) > time.monotonic():
            return True
        return self._check.allows(bearer(request.headers.get("authorization", "")))

    def begin(self, password: str) -> str | None:
        """Returns a new session's cookie for the right password, else None."""
        if not self.required or not self._check.allows(b"Bearer " + password.encode("utf-8", "replace")):
            return None
        session = secrets.token_urlsafe(32)
        self._until[session] = time.monotonic() + KEPT_S
        while len(self._until) > MAX_SESSIONS:
            self._until.popitem(last=False)
        return session

    def end(self, request: HTTPConnection) -> None:
        """Forgets the session of a request."""
        self._until.pop(request.cookies.get(self.cookie, ""), None)


def is_of_this_site(request: HTTPConnection) -> bool:
    """Returns whether no page of another site can have sent a request.

    A browser says where a request comes from (Sec-Fetch-Site, else Origin); what says nothing is no browser, and
    carries no one's cookies unasked.
    """
    came = request.headers.get("sec-fetch-site")
    if came is not None:
        return came in ("same-origin", "none")
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")
