"""Exceptions that cross module borders, and the did-you-mean that their texts use."""

import difflib
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any


class ContractError(Exception):
    """Base of every error this package raises on purpose."""


class InvalidObservation(ContractError, ValueError):
    """An observation, a request body or a field of it is not what the contract asks for (HTTP 422)."""


class UnknownSession(ContractError):
    """A stateful policy was asked for step > 0 of a session it does not know (HTTP 409)."""


class PolicyLost(ContractError):
    """What a policy works with, another process or machine, is gone: its service ends, to be started anew (503)."""


class PolicyError(ContractError):
    """What came of a request that got no actions: an answer's status and problem document, where there was one."""

    def __init__(self, message: str, status: int | None = None, problem: Mapping[str, Any] | None = None):
        super().__init__(message)
        self.status = status
        self.problem = dict(problem or {})


class PolicyUnavailable(PolicyError):
    """The policy could not answer: refused connection, timeout, 5xx, overload. The episode may be done again."""


class SessionLost(PolicyUnavailable):
    """The server has lost this session's state (409, for example after a restart): start the episode again."""


class PolicyRefused(PolicyError):
    """The policy understood and refuses (4xx): our observation or configuration is wrong, a repeat cannot help."""


class _Repr(reprlib.Repr):
    """Cuts a value before it is written out, at every level."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxlong, self.maxother = 3, 200, 60, 60

    def repr_bytes(self, value: bytes, level: int) -> str:
        return repr(value[:20])


_REPR = _Repr()


def shorten(value: object, limit: int = 80) -> str:
    """Return a foreign value for an error's text: at most `limit` characters, however large or nested it is."""
    text = _REPR.repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def nearest(name: object, known: Iterable[str]) -> str:
    """Returns `; did you mean 'x'?` where a known name is close to `name`, whatever its case, else `.`"""
    names = {one.lower(): one for one in known}
    close = difflib.get_close_matches(str(name)[:200].lower(), names, n=1, cutoff=0.5)
    return f"; did you mean {names[close[0]]!r}?" if close else "."


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Returns what `nearest` finds and all known names: `; did you mean 'x'? Known: a, b`."""
    names = sorted(known)
    return f"{nearest(name, names)} Known: {', '.join(names) or 'none'}"
