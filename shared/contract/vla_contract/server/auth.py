"""A service's token: `Authorization: Bearer <token>`, compared in constant time; required beyond loopback."""

import base64
import binascii
import hashlib
import hmac
import ipaddress
import os
from pathlib import Path

from vla_contract.protocol.tokens import check_token
from vla_contract.server.public import public_url
from vla_contract.server.tenants import Tenant, Tenants
from vla_contract.server.token_file import ADMIN

# Makes a browser ask for a password, which is the token; any user name.
ASK_PERSON = {"WWW-Authenticate": 'Basic realm="vla-lab: any user, password VLALAB_TOKEN", charset="UTF-8"'}
BIND = "VLALAB_BIND"  # the address of a container's published port; inside, a service listens on all
CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))  # created by Docker and Podman


def token_for(host: str) -> str | None:
    """Return $VLALAB_TOKEN, None where it is not set.

    Raises ValueError for an invalid token, for none if `host` or $VLALAB_PUBLIC_URL requires one, and for an invalid
    public address.
    """
    public_url()
    token = os.environ.get("VLALAB_TOKEN") or None
    require_token_beyond_loopback(host, token)
    TokenCheck(token)
    return token


def require_token_beyond_loopback(host: str, token: str | None) -> None:
    """Raise ValueError if a service that listens on `host` is reachable from the network without a token."""
    open_at = open_addresses(host)
    if open_at and not token:
        alone = f"{BIND}=127.0.0.1" if in_container() else "--host 127.0.0.1"
        raise ValueError(
            f"{open_at[0]} makes this service reachable from the network without a token: set VLALAB_TOKEN "
            f"(8 or more characters), or {alone} to serve only this machine"
        )


def open_addresses(host: str) -> list[str]:
    """Return the addresses of a service on `host` that are reachable from the network; empty for loopback.

    In a container $VLALAB_BIND, when set, is the relevant address: compose.yaml publishes ports there. Elsewhere
    nothing is published, and the variable cannot restrict `host`.
    """
    bind = os.environ.get(BIND) or host
    return [address for address in ((bind,) if in_container() else (host, bind)) if not is_loopback(address)]


def in_container() -> bool:
    """Return whether this process runs in a container of Docker or Podman."""
    return any(mark.exists() for mark in CONTAINER_MARKS)


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable from this machine only: localhost, 127.x.x.x or ::1."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class TokenCheck:
    """Checks the token of requests; without a configured token, all are allowed.

    named: the file with further tokens, which `tenant` accepts.

    Raises ValueError for a token that cannot travel in a header or is trivially short.
    """

    def __init__(self, token: str | None, named: Path | None = None):
        if token is not None and len(check_token("the token (VLALAB_TOKEN)", token)) < 8:
            raise ValueError(f"the token (VLALAB_TOKEN) has {len(token)} characters; expected 8 or more")
        self.required = token is not None
        self._expected = _digest(token.encode()) if token is not None else b""
        self.admin, self.named = Tenant(ADMIN), Tenants(named)

    def allows(self, authorization: bytes | None) -> bool:
        """Return whether the header has the token, in constant time."""
        return not self.required or self._is_admin(*_parse(authorization))

    def tenant(self, authorization: bytes | None) -> Tenant | None:
        """Return the sender of a request with this header, by the service's token or a named one; None for neither.

        A service without a token takes all other requests as the admin's.
        """
        is_bearer, digest = _parse(authorization)
        if self._is_admin(is_bearer, digest):
            return self.admin
        named = self.named.of(digest) if is_bearer else None
        return named or (None if self.required else self.admin)

    def _is_admin(self, is_bearer: bool, digest: bytes) -> bool:
        return hmac.compare_digest(digest, self._expected) and is_bearer


def bearer(authorization: str) -> bytes:
    """Return an Authorization header for `TokenCheck`; a browser's password counts as the token."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() != "basic":
        return authorization.encode("latin-1", "replace")
    try:
        user_password = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return b""
    return b"Bearer " + user_password.partition(b":")[2]


def _parse(authorization: bytes | None) -> tuple[bool, bytes]:
    """Return whether a header has a bearer token, and the hash of what it has."""
    scheme, _, token = (authorization or b"").partition(b" ")
    return scheme.lower() == b"bearer", _digest(token.strip())


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()
