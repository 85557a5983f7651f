"""Errors of requests; each becomes a page or JSON with the reason."""

from __future__ import annotations


class PageError(Exception):
    """A rejected or failed request: HTTP status and reason."""

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status, self.reason = status, reason


class NotFound(PageError):
    """The requested object does not exist or is not public."""

    def __init__(self, reason: str):
        super().__init__(404, reason)


class ServiceUnavailable(PageError):
    """Another service does not respond (status None: 502) or answers with an error."""

    def __init__(self, name: str, reason: str, status: int | None = None):
        super().__init__(status or 502, reason)
        self.name, self.answers = name, status is not None
