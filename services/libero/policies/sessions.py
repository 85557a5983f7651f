"""Which episode a session is about, read from its name."""

from __future__ import annotations

import re

SESSION_FORMS = (
    re.compile(r"^[^/]+/(\d+)/(\d+)/\d+$"),  # <suite>/<task>/<episode>/<attempt>
    re.compile(r"^.+\.(\d+)\.(\d+)\.\d+\.[^.]+$"),  # <run>.<task>.<episode>.<attempt>.<lease>
)


def episode_of(session: str) -> tuple[int, int] | None:
    """Returns (task index, episode) that the name of an evaluator's session tells, or None where it tells none."""
    for form in SESSION_FORMS:
        if found := form.match(session):
            return int(found[1]), int(found[2])
    return None
