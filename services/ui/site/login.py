"""Who is logged in: a cookie for browsers, the token itself for programs; and which requests other sites had sent."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from vla_contract.server.auth import TokenCheck, bearer

KEPT_S = 7 * 86400.0
SAFE = ("GET", "HEAD", "OPTIONS")


class Login:
    """The sessions of one site. Without a token everybody is in, and nobody is logged in.

    A session is its end and a signature by a key made of the token: it survives a restart of the site, and ends with
    the token. The cookie's name follows the token too, since a browser sends a machine's cookies to all of its ports.
    """

    def __init__(self, token: str | None):
        self._check = TokenCheck(token)
        # scrypt: a cookie tells nobody the token by guessing, which HMAC alone would make a matter of hours
        self._key = hashlib.scrypt((token or "").encode(), salt=b"vlalab session", n=2**14, r=8, p=1)
        self._ended: set[str] = set()  # logged out, until this process ends
        self.cookie = f"vlalab-{self._sign('name')[:8]}"

    @property
    def required(self) -> bool:
        """Whether there is a token to log in with."""
        return self._check.required

    def allows(self, request: HTTPConnection) -> bool:
        """Return whether a request may see the pages."""
        return not self.required or self.is_logged_in(request)

    def is_logged_in(self, request: HTTPConnection) -> bool:
        """Return whether who asks has given the token: by the login's cookie, or with this very request."""
        if not self.required:
            return False
        if self._is_valid(request.cookies.get(self.cookie, "")):
            return True
        return self._check.allows(bearer(request.headers.get("authorization", "")))

    def begin(self, password: str) -> str | None:
        """Return a new session's cookie for the right password, else None."""
        if not self.required or not self._check.allows(b"Bearer " + password.encode("utf-8", "replace")):
            return None
        session = f"{int(time.time() + KEPT_S)}.{secrets.token_hex(8)}"
        return f"{session}.{self._sign(session)}"

    def end(self, request: HTTPConnection) -> None:
        """Ends the session of a request."""
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
    """Return whether no page of another site can have sent a request.

    A browser says where a request comes from (Sec-Fetch-Site, else Origin); what says nothing is no browser, and
    carries no one's cookies unasked.
    """
    came = request.headers.get("sec-fetch-site")
    if came is not None:
        return came in ("same-origin", "none")
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")
