"""Who is logged in: a cookie for browsers, the token itself for programs; and which requests other sites had sent."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from vla_contract.server.auth import TokenCheck, bearer

KEPT_S = 7 * 86400.0
MAX_ENDED = 4096  # logouts that are remembered: nobody fills the memory with them
SAFE = ("GET", "HEAD", "OPTIONS")


class Login:
    """The sessions of one site. Without a token everybody is in, and nobody is logged in.

    A session is a cookie `EXPIRY.RANDOM.SIGNATURE`, signed with a key that is made of the token: it survives a restart
    of the site, and ends when the token changes. The cookie's name follows from the token too, since a browser sends a
    machine's cookies to all of its ports.
    """

    def __init__(self, token: str | None):
        self._check = TokenCheck(token)
        self._key = hashlib.sha256(b"vla-lab session " + (token or "").encode()).digest()
        self._ended: OrderedDict[str, None] = OrderedDict()
        self.cookie = f"vlalab-{self._sign('name')[:8]}"

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
        payload, _, signature = session.rpartition(".")
        if hmac.compare_digest(signature.encode(), self._sign(payload).encode()) and session not in self._ended:
            return float(payload.partition(".")[0]) > time.time()
        return self._check.allows(bearer(request.headers.get("authorization", "")))

    def begin(self, password: str) -> str | None:
        """Returns a new session's cookie for the right password, else None."""
        if not self.required or not self._check.allows(b"Bearer " + password.encode("utf-8", "replace")):
            return None
        payload = f"{time.time() + KEPT_S:.0f}.{secrets.token_urlsafe(16)}"
        return f"{payload}.{self._sign(payload)}"

    def end(self, request: HTTPConnection) -> None:
        """Ends the session of a request, until the site restarts; the browser forgets its cookie."""
        self._ended[request.cookies.get(self.cookie, "")] = None
        while len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), "sha256").hexdigest()


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
