"""Which skill serves which goal: the type of a table row. The tables are in `articulated.py` and `pick_place.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from services.libero.oracle.motion import Skill
from services.libero.oracle.scene import Goal, Scene


class Rule(NamedTuple):
    """One row: `applies(scene, goal)` says whether the skill can serve the goal now; the first row that applies wins.

    `skill(scene, goal, attempt)` makes the goal true and returns the last scene. It need not check the result: `plan`
    looks at the predicate afterwards and calls again with the next `attempt` (0, 1, …), for another try another way.
    `rank` orders goals that are open at the same time: lower first (open a drawer before filling it, close it last).
    """

    name: str
    applies: Callable[[Scene, Goal], bool]
    skill: Callable[[Scene, Goal, int], Skill]
    rank: int = 1
