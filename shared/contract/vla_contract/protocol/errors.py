"""Exceptions of the package, and suggestions for their messages."""

import difflib
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any


class ContractError(Exception):
    """Base of all errors of this package."""


class InvalidObservation(ContractError, ValueError):
    """An observation, a request body or a field of it does not match the contract (HTTP 422)."""


class UnknownSession(ContractError):
    """A stateful policy got step > 0 of an unknown session (HTTP 409)."""


class PolicyLost(ContractError):
    """A process or machine that the policy depends on is gone: its service exits and must be restarted (503)."""


class PolicyError(ContractError):
    """A request got no actions. status, problem: of the response, if there was one."""

    def __init__(self, message: str, status: int | None = None, problem: Mapping[str, Any] | None = None):
        super().__init__(message)
        self.status = status
        self.problem = dict(problem or {})


class PolicyUnavailable(PolicyError):
    """The policy could not answer: refused connection, timeout, 5xx, overload. The episode can be retried."""


class SessionLost(PolicyUnavailable):
    """The server lost this session's state (409, for example after a restart): restart the episode."""


class PolicyRefused(PolicyError):
    """The policy rejected the request (4xx): the observation or configuration is wrong, a retry cannot help."""


_REPR = reprlib.Repr()  # shortens values at every level
_REPR.maxlevel, _REPR.maxstring, _REPR.maxlong, _REPR.maxother = 3, 200, 60, 60
_REPR.repr_bytes = lambda value, level: repr(value[:20])  # type: ignore[attr-defined]


def shorten(value: object, limit: int = 80) -> str:
    """Return an untrusted value for an error message: at most `limit` characters for any size or nesting."""
    text = _REPR.repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def nearest(name: object, candidates: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the candidate closest to `name`, ignoring case, or `.` if none is close."""
    names = {candidate.lower(): candidate for candidate in candidates}
    close = difflib.get_close_matches(str(name)[:200].lower(), names, n=1, cutoff=0.5)
    return f"; did you mean {names[close[0]]!r}?" if close else "."


def did_you_mean(name: object, candidates: Iterable[str]) -> str:
    """Return the suggestion of `nearest` and all candidates: `; did you mean 'x'? Known: a, b`."""
    names = sorted(candidates)
    return f"{nearest(name, names)} Known: {', '.join(names) or 'none'}"
