"""Login: a cookie for browsers, the token for programs; and detection of cross-site requests."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from vla_contract.server.auth import TokenCheck, bearer

SESSION_S = 7 * 86400.0
SAFE = ("GET", "HEAD", "OPTIONS")


class Login:
    """Login sessions of a site. Without a token, pages are open and no user is logged in.

    A session is its expiry time, signed with a key derived from the token: it survives a restart and becomes invalid
    with another token. The cookie's name depends on the token, since browsers send cookies to all ports of a machine.
    """

    def __init__(self, token: str | None):
        self._check = TokenCheck(token)
        # scrypt: with HMAC alone, the token could be guessed from a cookie within hours
        self._key = hashlib.scrypt((token or "").encode(), salt=b"vlalab session", n=2**14, r=8, p=1)
        self._ended: set[str] = set()  # logged out; until this process ends
        self.cookie = f"vlalab-{self._sign('name')[:8]}"

    @property
    def required(self) -> bool:
        """Whether the site has a token."""
        return self._check.required

    def allows(self, request: HTTPConnection) -> bool:
        """Return whether a request may see the pages."""
        return not self.required or self.is_logged_in(request)

    def is_logged_in(self, request: HTTPConnection) -> bool:
        """Return whether a request has a valid cookie or the token itself."""
        if not self.required:
            return False
        if self._is_valid(request.cookies.get(self.cookie, "")):
            return True
        return self._check.allows(bearer(request.headers.get("authorization", "")))

    def begin(self, password: str) -> str | None:
        """Return a new session's cookie, or None for a wrong password."""
        if not self.required or not self._check.allows(b"Bearer " + password.encode("utf-8", "replace")):
            return None
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
