"""Rules for goals about articulated objects (drawers, doors, knobs) and for pushing over the table.

Order of work (`rank`): open before filling (0), turn and push with the rest (1), close last (2).
"""

from __future__ import annotations

from services.libero.oracle import aside, door, drawer, fill, incline, knob, oven, push
from services.libero.oracle.motion import Skill
from services.libero.oracle.parts import openness
from services.libero.oracle.rules import Rule
from services.libero.oracle.scene import Goal, Joint, SceneState

ROOM = 0.7  # openness that a drawer needs before an object is put into it
ROOMY, OVERSHOOT = (
    0.8,
    0.04,
)  # openness to pull it to: a wider open drawer would hang over objects in front of the cabinet


def joint_of(scene: SceneState, name: str) -> Joint | None:
    """Return the first joint that moves a goal's region or object; None if there is none."""
    world = scene.world
    if name in world.regions:
        names = world.regions[name].joints
    else:
        names = tuple(j.name for j in world.joints.values() if world.owner[j.body] == name)
    return world.joints[names[0]] if names else None


def _is_drawer(scene: SceneState, name: str) -> bool:
    joint = joint_of(scene, name)
    return joint is not None and joint.type == "slide"


def _must_open(scene: SceneState, goal: Goal) -> bool:
    if goal.name == "open":
        return _is_drawer(scene, goal.args[0])
    return _into_drawer(scene, goal) and openness(scene, joint_of(scene, goal.args[1])) < ROOM


def _open_drawer(scene: SceneState, goal: Goal, attempt: int) -> Skill:
    joint = joint_of(scene, goal.args[-1])
    if goal.name == "open":
        return (yield from drawer.open_drawer(scene, joint, attempt))
    if not aside.within_reach(scene, goal.args[0], joint, ROOMY + OVERSHOOT):
        scene = yield from aside.set_aside(scene, goal.args[0], joint)
    return (yield from drawer.open_drawer(scene, joint, attempt, ROOMY))


def _into_drawer(scene: SceneState, goal: Goal) -> bool:
    return goal.name == "in" and _is_drawer(scene, goal.args[1])


def _fill_drawer(scene: SceneState, goal: Goal, attempt: int) -> Skill:
    return (yield from fill.put_in_drawer(scene, goal.args[0], joint_of(scene, goal.args[1])))


def _close_drawer(scene: SceneState, goal: Goal, attempt: int) -> Skill:
    return (yield from drawer.close_drawer(scene, joint_of(scene, goal.args[0])))


def _is_door(scene: SceneState, name: str) -> bool:
    joint = joint_of(scene, name)
    return joint is not None and joint.type == "hinge"


def _close_door(scene: SceneState, goal: Goal, attempt: int) -> Skill:
    return (yield from door.close_door(scene, joint_of(scene, goal.args[0])))


def _behind_door(scene: SceneState, goal: Goal) -> bool:
    """Whether an object goes into a region of a fixture with a door."""
    region = scene.world.regions.get(goal.args[-1])
    owner = region.parent if region is not None else ""
    return goal.name == "in" and owner in scene.world.objects and _is_door(scene, owner)


def _put_behind_door(scene: SceneState, goal: Goal, attempt: int) -> Skill:
    name, region = goal.args
    hinge = joint_of(scene, scene.world.regions[region].parent)
    return (yield from oven.put_in_front(scene, name, region, hinge))


def _turn_on(scene: SceneState, goal: Goal, attempt: int) -> Skill:
    return (yield from knob.turn_on(scene, joint_of(scene, goal.args[0]), attempt))


def _turn_off(scene: SceneState, goal: Goal, attempt: int) -> Skill:
    return (yield from knob.turn_off(scene, joint_of(scene, goal.args[0]), attempt))


def _is_push(scene: SceneState, goal: Goal) -> bool:
    """Whether a flat, wide object goes to a region of the table: pushing is easier than picking it up."""
    world = scene.world
    if goal.name != "on" or goal.args[1] not in world.regions or world.regions[goal.args[1]].parent:
        return False
    return push.is_flat(scene, goal.args[0])


def _push(scene: SceneState, goal: Goal, attempt: int) -> Skill:
    return (yield from push.push_to(scene, goal.args[0], scene.site(goal.args[1]).pos[:2]))


def _is_incline(scene: SceneState, goal: Goal) -> bool:
    return goal.name == "on" and goal.args[1] in scene.world.regions and incline.is_slanted(scene, goal.args[1])


RULES: tuple[Rule, ...] = (
    Rule("open a drawer", _must_open, _open_drawer, rank=0),
    Rule("put into a drawer", _into_drawer, _fill_drawer),
    Rule("close a drawer", lambda s, goal: goal.name == "close" and _is_drawer(s, goal.args[0]), _close_drawer, rank=2),
    Rule("put in by the front", _behind_door, _put_behind_door),
    Rule("close a door", lambda s, goal: goal.name == "close" and _is_door(s, goal.args[0]), _close_door, rank=2),
    Rule("turn a knob on", lambda scene, goal: goal.name == "turnon", _turn_on),
    Rule("turn a knob off", lambda scene, goal: goal.name == "turnoff", _turn_off),
    Rule("put on a slope", _is_incline, incline.put_on_incline),
    Rule("push over the table", _is_push, _push),
)
