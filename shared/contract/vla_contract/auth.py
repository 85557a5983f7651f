"""The optional token of a service: `Authorization: Bearer <token>`, compared in constant time."""

import hashlib
import hmac


class TokenCheck:
    """Tells whether a request carries the token; with no token set, every request does.

    Raises ValueError for a token that cannot travel in a header or is trivially short.
    """

    def __init__(self, token: str | None):
        if token is not None and (len(token) < 8 or not token.isascii() or not token.isprintable() or " " in token):
            raise ValueError(
                f"the token has {len(token)} characters; expected 8 or more printable ASCII ones without spaces"
            )
        self.required = token is not None
        self._expected = _digest(token.encode()) if token is not None else b""

    def allows(self, authorization: bytes | None) -> bool:
        """Returns whether the header's value is right; takes as long for a near miss as for a wild guess."""
        if not self.required:
            return True
        scheme, _, token = (authorization or b"").partition(b" ")
        return hmac.compare_digest(_digest(token.strip()), self._expected) and scheme.lower() == b"bearer"


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()
