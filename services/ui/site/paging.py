"""Long lists, shown in parts."""

from __future__ import annotations

ROWS = 100  # at a time: a browser draws thousands slowly


def start(asked: str, count: int) -> int:
    """Returns which row a list begins with: the one asked for, as far as there is one."""
    return min(int(asked), max(count - 1, 0)) if asked.isdecimal() and len(asked) < 10 else 0


def turns(start: int, count: int) -> dict[str, int]:
    """Returns where the part before a list's shown one begins ("newer"), and the one after, where there are any."""
    before = {"newer": max(start - ROWS, 0)} if start else {}
    return before | ({"older": start + ROWS} if start + ROWS < count else {})
