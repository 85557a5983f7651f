"""The host names that a service without a token answers to.

A page of another site can point its own name at 127.0.0.1 (DNS rebinding): a browser then lets it read the answers of
every service there that does not look at `Host`. A token keeps such a page out by itself.
"""

import os
import re
from collections.abc import Iterable
from functools import lru_cache

from vla_contract.protocol.problems import Problem
from vla_contract.server.auth import is_loopback

ALLOWED_HOSTS = "VLALAB_ALLOWED_HOSTS"
SERVICE_NAMES = "VLALAB_SERVICE_NAMES"
_NAME = re.compile(r"[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]")
_AUTHORITY = re.compile(r"([^\s:/@\[\]]+|\[[0-9a-f:.]+\])(?::\d{1,5})?", re.ASCII)


class HostCheck:
    """Checks the headers `Host` and `Origin` of a request against loopback names and `names`."""

    def __init__(self, names: Iterable[str]):
        self._names = frozenset(name.lower() for name in names)
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
        return match is not None and (
            is_loopback(match[1]) or match[1].endswith(".localhost") or match[1] in self._names
        )


def host_check(token_required: bool) -> HostCheck | None:
    """Return the check of a service, None for one whose token keeps other sites' pages out.

    Raises ValueError for a bad name in $VLALAB_ALLOWED_HOSTS.
    """
    return None if token_required else HostCheck(allowed_names())


def allowed_names() -> list[str]:
    """Return the configured names, and in a container of compose.yaml those that containers call each other by.

    Raises ValueError for what is not a host name.
    """
    names = [
        (variable, name.strip()) for variable in (ALLOWED_HOSTS, SERVICE_NAMES)
        for name in os.environ.get(variable, "").split(",") if name.strip()
    ]  # fmt: skip
    for variable, name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{variable} has {name!r}; expected host names without scheme and port, separated by commas, "
                "for example gpu01.example.org"
            )
    return [name for _, name in names]
