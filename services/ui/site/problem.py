"""The ways in which a request is not answered as it was asked; each becomes a page or JSON with the reason."""

from __future__ import annotations


class Problem(Exception):
    """A request that is refused or fails: the HTTP status and why, in a sentence."""

    def __init__(self, status: int, why: str):
        super().__init__(why)
        self.status, self.why = status, why


class Missing(Problem):
    """What was asked for does not exist, or is nothing to hand out; the message says what does."""

    def __init__(self, why: str):
        super().__init__(404, why)


class Away(Problem):
    """Another service does not answer (no status of its own: 502), or not with what was asked for."""

    def __init__(self, name: str, why: str, status: int | None = None):
        super().__init__(status or 502, why)
        self.name, self.answers = name, status is not None
