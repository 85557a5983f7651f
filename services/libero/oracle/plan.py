"""From the task's goal predicates to skills: serve the open goals in order until all of them hold."""

from __future__ import annotations

import numpy as np

from services.libero.oracle import doors, drawers, knob, pick_place, placements, push
from services.libero.oracle.motion import OPEN, Skill
from services.libero.oracle.parts import joint_of, openness
from services.libero.oracle.scene import Goal, SceneState

ROOM = 0.7  # openness that a drawer needs before an object is put into it
REST = np.array([0, 0, 0, 0, 0, 0, OPEN], dtype=np.float32)


def solve(scene: SceneState) -> Skill:
    """Work on the goals that do not hold yet; never ends by itself, since the episode does."""
    attempts: dict[Goal, int] = {}
    while True:
        goal = next_goal(scene, attempts)
        if goal is None:
            scene = yield REST.copy()
            continue
        attempt = attempts.get(goal, 0)
        attempts[goal] = attempt + 1
        before = scene.step
        _, skill = skill_for(scene, goal, attempt)
        scene = yield from skill
        if scene.step == before:  # the skill did nothing
            scene = yield REST.copy()


def next_goal(scene: SceneState, attempts: dict[Goal, int]) -> Goal | None:
    """Return the open goal to serve next, by rank, attempts and the task's order; None if no skill serves any."""
    served = [(skill_for(scene, goal), goal) for goal in open_goals(scene)]
    choices = [(found[0], attempts.get(goal, 0), i) for i, (found, goal) in enumerate(served) if found is not None]
    return served[min(choices)[2]][1] if choices else None


def open_goals(scene: SceneState) -> list[Goal]:
    """Return the goals that do not hold yet, in the task's order."""
    return [goal for goal, done in zip(scene.world.goals, scene.goal_done, strict=True) if not done]


def unserved(scene: SceneState) -> list[Goal]:
    """Return the open goals without a skill; their tasks fail."""
    return [goal for goal in open_goals(scene) if skill_for(scene, goal) is None]


def skill_for(scene: SceneState, goal: Goal, attempt: int = 0) -> tuple[int, Skill] | None:
    """Return a goal's rank and the skill that can serve it now; None if the oracle has none.

    The skill need not check the result: `solve` checks the predicate and calls again with the next `attempt` (0, 1, …),
    which may use another strategy. Of several open goals the lowest rank comes first: a drawer is opened before it is
    filled (0), and closed last (2).
    """
    name, target, regions = goal.args[0], goal.args[-1], scene.world.regions
    joint = joint_of(scene, target)
    is_drawer, is_door = (joint is not None and joint.type == kind for kind in ("slide", "hinge"))
    if goal.name == "open" and is_drawer:
        return 0, drawers.open_drawer(scene, joint, attempt)
    if goal.name == "close" and is_drawer:
        return 2, drawers.close_drawer(scene, joint)
    if goal.name == "close" and is_door:
        return 2, doors.close_door(scene, joint)
    if goal.name in ("turnon", "turnoff"):
        return 1, knob.turn(scene, joint, attempt, on=goal.name == "turnon")
    if goal.name == "in" and is_drawer:
        if openness(scene, joint) < ROOM:
            return 0, drawers.make_room(scene, name, joint, attempt)
        return 1, drawers.fill_drawer(scene, name, joint)
    if goal.name == "in" and target in regions:
        owner = regions[target].parent
        hinge = joint_of(scene, owner) if owner in scene.world.objects else None
        if hinge is not None and hinge.type == "hinge":
            return 1, doors.put_behind_door(scene, name, target, hinge)
        return 1, pick_place.drop_into(scene, name, target)
    if goal.name == "on" and target in regions:
        if pick_place.is_slanted(scene, target):
            return 1, pick_place.put_on_slope(scene, name, target)
        if not regions[target].parent and push.is_flat(scene, name):  # easier to push over the table than to pick up
            return 1, push.push_to(scene, name, scene.site(target).pos[:2])
        return 1, pick_place.put(scene, name, target, placements.in_region)
    if goal.name == "on":
        return 1, pick_place.put(scene, name, target, placements.on_object)
    return None
