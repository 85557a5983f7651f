"""The host names that a service without a token answers to.

A page of another site can point its own name at 127.0.0.1 (DNS rebinding): a browser then lets it read the answers of
every service there that does not look at `Host`. A token keeps such a page out by itself.
"""

import os
import re
from collections.abc import Iterable
from functools import lru_cache

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from vla_contract.protocol.problems import MEDIA_TYPE, Problem
from vla_contract.server.auth import in_container, is_loopback

ALLOWED_HOSTS = "VLALAB_ALLOWED_HOSTS"
_NAME = re.compile(r"[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]")
_AUTHORITY = re.compile(r"([^\s:/@\[\]]+|\[[0-9a-f:.]+\])(?::\d{1,5})?", re.ASCII)


class HostCheck:
    """Checks the headers `Host` and `Origin` of a request against loopback names and $VLALAB_ALLOWED_HOSTS.

    In a container every name without a dot is allowed too: containers call each other by such names. Raises
    ValueError for a bad name in the variable.
    """

    def __init__(self) -> None:
        self._names, self._without_dot = {name.lower() for name in allowed_names()}, in_container()
        self._allows = lru_cache(256)(self._is_allowed)

    def refusal(self, headers: Iterable[tuple[bytes, bytes]]) -> Problem | None:
        """Return why a request is refused, None if it is not. Header names are in lower case."""
        for name, value in headers:
            if name in (b"host", b"origin") and not self._allows(name, value):
                received = f"{name.decode().capitalize()} is {value[:80].decode('latin-1')!r}"
                return Problem(
                    "unknown-host",
                    f"{received}; expected localhost, 127.0.0.1 or a name in {ALLOWED_HOSTS}. Add it there, or set "
                    "VLALAB_TOKEN, and start the service again",
                )
        return None

    def _is_allowed(self, header: bytes, value: bytes) -> bool:
        authority = value.decode("latin-1").lower()
        if header == b"origin":
            authority = authority.partition("://")[2]
        match = _AUTHORITY.fullmatch(authority)
        if match is None:
            return False
        host = match[1]
        is_name = host in self._names or (self._without_dot and re.fullmatch(r"[a-z0-9_-]+", host) is not None)
        return is_loopback(host) or host.endswith(".localhost") or is_name


class HostGuard:
    """ASGI middleware that answers requests of other hosts and sites with 403, for a service without a token."""

    def __init__(self, app: ASGIApp):
        self.app, self._check = app, HostCheck()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        if scope["type"] == "http" and (problem := self._check.refusal(scope["headers"])):
            app = Response(problem.json(), problem.status, media_type=MEDIA_TYPE)
        await app(scope, receive, send)


def allowed_names() -> list[str]:
    """Return the configured names. Raises ValueError for what is not a host name."""
    names = [name.strip() for name in os.environ.get(ALLOWED_HOSTS, "").split(",") if name.strip()]
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{ALLOWED_HOSTS} has {name!r}; expected host names without scheme and port, separated by commas, "
                "for example gpu01.example.org"
            )
    return names
