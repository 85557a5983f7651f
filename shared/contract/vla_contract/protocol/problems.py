"""Errors over HTTP: problem+json (RFC 9457) with the value, the expectation and the next step."""

import json
import math
from collections.abc import Mapping
from typing import Any

from vla_contract.protocol.errors import ContractError

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:vla-lab:problem:"

# kind -> (status, title) of every problem of a policy service
KINDS = {
    "bad-request": (400, "The request is malformed"),
    "unauthorized": (401, "No or wrong token"),
    "forbidden": (403, "The token does not permit this"),
    "unknown-host": (403, "The service does not answer to this host name"),
    "not-found": (404, "No such route"),
    "method-not-allowed": (405, "Wrong method for this route"),
    "slow-request": (408, "The request came too slowly"),
    "session-lost": (409, "The session's state is not here"),
    "too-large": (413, "The request's body is too large"),
    "wrong-type": (415, "The request's body has the wrong type"),
    "invalid-observation": (422, "The observation is invalid"),
    "queue-full": (429, "The queue is full"),
    "token-limit": (429, "The token's limit is reached"),
    "policy-failed": (500, "The policy failed"),
    "invalid-action": (500, "The policy's output is no valid action"),
    "internal": (500, "The server failed"),
    "loading": (503, "The policy is loading"),
    "load-failed": (503, "The policy could not be loaded"),
    "policy-lost": (503, "The policy does not answer any more"),
    "stuck": (503, "An inference does not end"),
    "busy": (503, "Too much is going on"),
    "stopping": (503, "The server is stopping"),
    "expired": (504, "The request waited too long"),
}


class Problem(ContractError):
    """An error with the HTTP status, headers and body of its response.

    detail says value, expectation and next step in a sentence or two; `extra` holds members for programs.
    """

    def __init__(self, kind: str, detail: str, headers: Mapping[str, str] | None = None, **extra: Any):
        super().__init__(detail)
        self.kind = kind
        self.status, self.title = KINDS[kind]
        self.detail = detail
        self.headers = dict(headers or {})
        self.extra = extra

    @classmethod
    def retry_after(cls, kind: str, detail: str, seconds: float, **extra: Any) -> "Problem":
        """Return a problem with Retry-After: whole seconds in the header, exact ones in the body."""
        header = {"Retry-After": str(max(1, math.ceil(seconds)))}
        return cls(kind, detail, header, retry_after_s=round(seconds, 3), **extra)

    def body(self, request_id: str | None = None) -> dict[str, Any]:
        """Return the members of the problem document."""
        members = {"type": TYPE_PREFIX + self.kind, "title": self.title, "status": self.status}
        members |= {"detail": self.detail, **self.extra}
        return members | ({"request_id": request_id} if request_id else {})

    def json(self, request_id: str | None = None) -> bytes:
        """Return the problem document."""
        return json.dumps(self.body(request_id), allow_nan=False, default=str).encode()
