"""From the task's goal predicates to skills: serve the open goals in order until all of them hold."""

from __future__ import annotations

import numpy as np

from services.libero.oracle import articulated, pick_place
from services.libero.oracle.motion import OPEN, Skill
from services.libero.oracle.rules import Rule
from services.libero.oracle.scene import Goal, SceneState

RULES: tuple[Rule, ...] = (*articulated.RULES, *pick_place.RULES)


def solve(scene: SceneState) -> Skill:
    """Work on the goals that do not hold yet; never ends by itself, since the episode does."""
    attempts: dict[Goal, int] = {}
    while True:
        goal = next_goal(scene, attempts)
        if goal is None:
            scene = yield _rest()
            continue
        attempt = attempts.get(goal, 0)
        attempts[goal] = attempt + 1
        before = scene.step
        scene = yield from rule_for(scene, goal).skill(scene, goal, attempt)
        if scene.step == before:  # the skill did nothing
            scene = yield _rest()


def next_goal(scene: SceneState, attempts: dict[Goal, int]) -> Goal | None:
    """Return the open goal to serve next, by rank, attempts and the task's order; None if no skill serves any."""
    rules = [(rule_for(scene, goal), goal) for goal in open_goals(scene)]
    choices = [(rule.rank, attempts.get(goal, 0), i) for i, (rule, goal) in enumerate(rules) if rule is not None]
    return rules[min(choices)[2]][1] if choices else None


def open_goals(scene: SceneState) -> list[Goal]:
    """Return the goals that do not hold yet, in the task's order."""
    return [goal for goal, done in zip(scene.world.goals, scene.goal_done, strict=True) if not done]


def unserved(scene: SceneState) -> list[Goal]:
    """Return the open goals without a skill; their tasks fail."""
    return [goal for goal in open_goals(scene) if rule_for(scene, goal) is None]


def rule_for(scene: SceneState, goal: Goal) -> Rule | None:
    """Return the first rule that applies; None if the oracle has no skill for the goal."""
    return next((rule for rule in RULES if rule.applies(scene, goal)), None)


def _rest() -> np.ndarray:
    action = np.zeros(7, dtype=np.float32)
    action[6] = OPEN
    return action
