"""Counts the calls of a function or method, which goes on doing what it does."""

from __future__ import annotations

import pytest


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[str]:
    """Returns a list that grows by `name` with every call of `owner.name`. AttributeError where there is none."""
    original, calls = getattr(owner, name), []

    def counted(*arguments, **keywords):
        calls.append(name)
        return original(*arguments, **keywords)

    monkeypatch.setattr(owner, name, counted)
    return calls
