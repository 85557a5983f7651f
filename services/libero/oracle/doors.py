"""Fixtures with a door on a vertical hinge, such as a microwave: put a cup in, and push the door shut."""

from __future__ import annotations

import numpy as np

from services.libero.oracle.drawers import bring
from services.libero.oracle.motion import (
    CLOSE,
    NEUTRAL,
    OPEN,
    Skill,
    axis_rotation,
    close_gripper,
    facing,
    horizontal,
    leaning,
    move_by,
    move_to,
    open_gripper,
    servo,
)
from services.libero.oracle.parts import (
    Box,
    door_direction,
    high,
    joint_at,
    low,
    object_parts,
    open_sign,
    openness,
    other_parts,
    panel_of,
)
from services.libero.oracle.pick_place import holds
from services.libero.oracle.scene import UP, Joint, Pose, SceneState

PUSH_AT = 0.7  # position of the push between hinge (0) and free edge (1)
BELOW_TOP = 0.025  # m from the door's top edge down to the grip site: the palm stays above the door
OFF_DOOR = 0.06  # m in front of the door where the hand comes down
FINGER = 0.012  # m from the grip site to the side of the closed fingers
ABOVE = 0.12
LEAD = 0.35  # rad that the pushing hand aims ahead of the door
SHUT = 0.001  # of the door's travel
LEAN = 0.5  # rad that the hand leans back, so that the palm avoids rim and ceiling
APPROACH = 0.09  # m of approach along the fingers
GRIP_RISE = 0.008  # m above the middle of the handle's bar where the grip site goes
LIFT = 0.06
SILL = 0.015  # m above the floor inside while the cup moves in
BEFORE = 0.03  # m in front of the opening where the cup stops and turns
INSIDE = 0.018  # m that the cup's origin goes beyond the edge of the goal region
RETREAT = 0.10


def close_door(scene: SceneState, joint: Joint) -> Skill:
    """Pushes a door shut from outside with the closed fingers, following its turn."""
    start = _push_pose(scene, joint, NEUTRAL, -OFF_DOOR)
    above = start.pos + ABOVE * UP
    scene = yield from move_to(scene, above, gripper=CLOSE, rot=start.rot, tolerance=0.03, angle_tolerance=0.3)
    scene = yield from move_to(scene, start.pos, gripper=CLOSE, rot=start.rot, tolerance=0.015, timeout=40)
    for _ in range(100):
        if openness(scene, joint) < SHUT:
            break
        pos, rot = _push_pose(scene, joint, scene.eef.rot, 0.0, LEAD)
        scene = yield servo(scene, pos, rot, CLOSE)
    return (yield from move_by(scene, ABOVE * UP, gripper=CLOSE, timeout=15, tolerance=0.05))


def _push_pose(scene: SceneState, joint: Joint, reference: np.ndarray, gap: float, ahead: float = 0.0) -> Pose:
    """Return the hand's pose touching the outside of the door, in the orientation closer to `reference`.

    `gap` < 0 m stays off the door; `ahead` rad is the turn of the door to aim ahead of it.
    """
    axis, anchor = scene.axis(joint), scene.anchor(joint)
    panel = panel_of(scene, joint)
    across = door_direction(scene, joint)
    shut = -open_sign(scene, joint) * np.cross(axis, across)  # the way the door moves when it closes
    radius = PUSH_AT * (panel.high(across) - anchor @ across)
    outside = panel.low(shut) - anchor @ shut - FINGER + gap
    pos = anchor + radius * across + outside * shut
    pos[2] = panel.high(UP) - BELOW_TOP
    turn = axis_rotation(axis, -open_sign(scene, joint) * ahead)
    return Pose(anchor + turn @ (pos - anchor), facing(-UP, turn @ shut, reference))


def put_behind_door(scene: SceneState, name: str, region: str, joint: Joint) -> Skill:
    """Picks a cup up by its handle, turns the handle to the front, moves it in over the sill and lets it down.

    `region` is the goal region inside, `joint` the hinge of the open door.
    """
    bar, outward = cup_handle(scene, name)  # grasp it from above and outside
    rot = leaning(-outward, -LEAN)
    grip = bar.pose.pos + GRIP_RISE * UP
    scene = yield from move_to(scene, grip - APPROACH * rot[:, 2], gripper=OPEN, rot=rot, tolerance=0.015)
    scene = yield from move_to(scene, grip, gripper=OPEN, rot=rot, tolerance=0.005, timeout=30)
    scene = yield from close_gripper(scene)
    scene = yield from move_by(scene, LIFT * UP, gripper=CLOSE, tolerance=0.02, timeout=15)
    if not holds(scene, name):
        return scene

    into, walls = inward(scene, region, joint), other_parts(scene, joint)  # in front of the opening, above the sill
    rot = leaning(into, -LEAN, scene.eef.rot)
    height = floor_of(scene, region, joint) + SILL + _reach(scene, name, -UP)
    before = np.append(scene.site(region).pos[:2], height)
    before += (low(walls, into) - BEFORE - _reach(scene, name, into) - before @ into) * into
    raised = np.append(scene.pose(name).pos[:2], height)
    scene = yield from bring(scene, name, raised, rot, tolerance=0.03)
    scene = yield from bring(scene, name, before, rot, tolerance=0.01)
    before = before + _sideways(scene, name, region, other_parts(scene, joint), into)
    scene = yield from bring(scene, name, before, rot, tolerance=0.008, timeout=30)

    site = scene.site(region)
    front = float(site.pos @ into - np.abs(site.rot @ scene.world.sites[region].size) @ np.abs(into))
    inside = scene.pose(name).pos
    inside = inside + (front + INSIDE - inside @ into) * into
    scene = yield from bring(scene, name, inside, rot, tolerance=0.006, timeout=40, speed=0.7)
    scene = yield from bring(scene, name, inside - SILL * UP, rot, tolerance=0.006, timeout=10)
    scene = yield from open_gripper(scene)
    scene = yield from move_by(scene, -RETREAT * into, gripper=OPEN, tolerance=0.02, timeout=20)
    return (yield from move_by(scene, RETREAT * UP, gripper=OPEN, tolerance=0.03, timeout=20))


def cup_handle(scene: SceneState, name: str) -> tuple[Box, np.ndarray]:
    """Return the bar of a cup's handle, its outermost shape, and the level direction [3] in which it sticks out."""
    boxes = object_parts(scene, name)
    middle = np.median([box.pose.pos for box in boxes], axis=0)
    bar = max(boxes, key=lambda box: np.linalg.norm((box.pose.pos - middle)[:2]))
    return bar, horizontal(bar.pose.pos - middle)


def inward(scene: SceneState, region: str, joint: Joint) -> np.ndarray:
    """Return the level unit vector [3] through the opening: across the closed door, towards the region's middle."""
    turn = axis_rotation(scene.axis(joint), joint_at(scene, joint, 0.0) - scene.joint(joint))
    closed = turn @ door_direction(scene, joint)
    to_middle = scene.site(region).pos - scene.anchor(joint)
    return horizontal(to_middle - (to_middle @ closed) * closed)


def floor_of(scene: SceneState, region: str, joint: Joint) -> float:
    """Return the height of the floor inside, m: the highest top below the region's middle."""
    middle, walls = scene.site(region).pos, other_parts(scene, joint)
    under = [box for box in walls if all(box.crosses(middle, axis) for axis in np.eye(3)[:2])]
    return max((box.high(UP) for box in under if box.high(UP) < middle[2]), default=low(walls, UP))


def _sideways(scene: SceneState, name: str, region: str, walls: list[Box], into: np.ndarray) -> np.ndarray:
    """Return the shift [3] along the front that centres a held cup between the walls."""
    side, middle = np.cross(UP, into), scene.site(region).pos
    walls = [box for box in walls if box.crosses(middle, UP) and box.crosses(middle, into)]
    left = max((box.high(side) for box in walls if box.high(side) < middle @ side), default=middle @ side)
    right = min((box.low(side) for box in walls if box.low(side) > middle @ side), default=middle @ side)
    cup = object_parts(scene, name)
    return ((left + right) - (low(cup, side) + high(cup, side))) / 2 * side


def _reach(scene: SceneState, name: str, direction: np.ndarray) -> float:
    """Return the extent (m) of an object beyond its origin along `direction`."""
    return high(object_parts(scene, name), direction) - float(scene.pose(name).pos @ direction)
