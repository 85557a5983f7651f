"""Which episode a session is about, read from its name."""

from __future__ import annotations

import re

SESSION_FORM = re.compile(r"^.+\.(\d+)\.(\d+)\.\d+\.[^.]+$")  # <run>.<task>.<episode>.<attempt>.<lease>


def episode_of(session: str) -> tuple[int, int] | None:
    """Returns (task index, episode) that the name of an evaluator's session tells, or None where it tells none."""
    found = SESSION_FORM.match(session)
    return (int(found[1]), int(found[2])) if found else None
