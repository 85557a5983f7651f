"""A service's token: `Authorization: Bearer <token>`, compared in constant time; beyond loopback there must be one."""

import base64
import binascii
import hashlib
import hmac
import ipaddress
import os
from pathlib import Path

from vla_contract.protocol.tokens import check_token
from vla_contract.server.public import public_url

# What a page answers with so that a browser asks: any user, and the token as the password.
ASK_PERSON = {"WWW-Authenticate": 'Basic realm="vla-lab: any user, password VLALAB_TOKEN", charset="UTF-8"'}
BIND = "VLALAB_BIND"  # where a container's port is published; inside, a service listens on all addresses
CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))  # what Docker and Podman put into a container


def token_for(host: str) -> str | None:
    """Returns $VLALAB_TOKEN, None where it is not set.

    Raises ValueError for a bad one, for none where `host` or $VLALAB_PUBLIC_URL needs one, and for a bad public
    address.
    """
    public_url()
    token = os.environ.get("VLALAB_TOKEN") or None
    require_token_beyond_loopback(host, token)
    TokenCheck(token)
    return token


def require_token_beyond_loopback(host: str, token: str | None) -> None:
    """Raises ValueError where the network reaches a service that listens on `host`, and it asks for no token."""
    open_at = open_addresses(host)
    if open_at and not token:
        alone = f"{BIND}=127.0.0.1" if in_container() else "--host 127.0.0.1"
        raise ValueError(
            f"{open_at[0]} lets the whole network use this service, and no token protects it: set VLALAB_TOKEN "
            f"(8 or more characters), or {alone} to serve this machine alone"
        )


def open_addresses(host: str) -> list[str]:
    """Return the addresses at which the network reaches a service that listens on `host`; empty for loopback only.

    In a container $VLALAB_BIND, when set, is the address that counts: compose.yaml publishes ports there. Elsewhere
    nothing is published, and a variable cannot take back what `host` opens.
    """
    bind = os.environ.get(BIND) or host
    return [address for address in ((bind,) if in_container() else (host, bind)) if not is_loopback(address)]


def in_container() -> bool:
    """Returns whether this process runs in a container of Docker's or Podman's."""
    return any(mark.exists() for mark in CONTAINER_MARKS)


def is_loopback(host: str) -> bool:
    """Returns whether only this machine reaches that address: localhost, 127.x.x.x or ::1."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class TokenCheck:
    """Tells whether a request carries the token; with no token set, every request does.

    Raises ValueError for a token that cannot travel in a header or is trivially short.
    """

    def __init__(self, token: str | None):
        if token is not None and len(check_token("the token (VLALAB_TOKEN)", token)) < 8:
            raise ValueError(f"the token (VLALAB_TOKEN) has {len(token)} characters; expected 8 or more")
        self.required = token is not None
        self._expected = _digest(token.encode()) if token is not None else b""

    def allows(self, authorization: bytes | None) -> bool:
        """Returns whether the header's value is right; takes as long for a near miss as for a wild guess."""
        if not self.required:
            return True
        scheme, _, token = (authorization or b"").partition(b" ")
        return hmac.compare_digest(_digest(token.strip()), self._expected) and scheme.lower() == b"bearer"


def bearer(authorization: str) -> bytes:
    """Returns an Authorization header in the form `TokenCheck` knows; a browser's password counts as the token."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() != "basic":
        return authorization.encode("latin-1", "replace")
    try:
        user_password = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return b""
    return b"Bearer " + user_password.partition(b":")[2]


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()
