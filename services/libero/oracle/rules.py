"""The type of a rule that maps a goal to a skill. The tables are in `articulated.py` and `pick_place.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from services.libero.oracle.motion import Skill
from services.libero.oracle.scene import Goal, SceneState


class Rule(NamedTuple):
    """One row: `applies(scene, goal)` is true if the skill can serve the goal now; the first such row is used.

    `skill(scene, goal, attempt)` makes the goal true and returns the last scene. It need not check the result: `plan`
    checks the predicate and calls again with the next `attempt` (0, 1, …), which may use another strategy.
    `rank` orders goals that are open at the same time: lower first (open a drawer before filling it, close it last).
    """

    name: str
    applies: Callable[[SceneState, Goal], bool]
    skill: Callable[[SceneState, Goal, int], Skill]
    rank: int = 1
