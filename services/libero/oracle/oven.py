"""Put a cup into a fixture that opens to the front, such as a microwave, held by its handle."""

from __future__ import annotations

import numpy as np

from services.libero.oracle.fill import bring
from services.libero.oracle.hand import UP, axis_rotation, horizontal, leaning
from services.libero.oracle.motion import CLOSE, OPEN, Skill, close_gripper, move_by, move_to, open_gripper
from services.libero.oracle.parts import Box, door_direction, high, joint_at, low, object_parts, other_parts
from services.libero.oracle.pick_place import holds
from services.libero.oracle.scene import Joint, SceneState

LEAN = 0.5  # rad that the hand leans back, so that the palm avoids rim and ceiling
APPROACH = 0.09  # m of approach along the fingers
GRIP_RISE = 0.008  # m above the middle of the handle's bar where the grip site goes
LIFT = 0.06
SILL = 0.015  # m above the floor inside while the cup moves in
BEFORE = 0.03  # m in front of the opening where the cup stops and turns
INSIDE = 0.018  # m that the cup's origin goes beyond the edge of the goal region
RETREAT = 0.10


def put_in_front(scene: SceneState, name: str, region: str, joint: Joint) -> Skill:
    """Picks a cup up by its handle, turns the handle to the front, moves it in over the sill and lets it down.

    `region` is the goal region inside, `joint` the hinge of the open door.
    """
    scene = yield from pick_by_handle(scene, name)
    if not holds(scene, name):
        return scene
    into = inward(scene, region, joint)
    rot = leaning(into, -LEAN, scene.eef.rot)
    scene = yield from _bring_before(scene, name, region, joint, rot)
    inside = scene.pose(name).pos
    inside = inside + (_region_front(scene, region, into) + INSIDE - inside @ into) * into
    scene = yield from bring(scene, name, inside, rot, tolerance=0.006, timeout=40, speed=0.7)
    scene = yield from bring(scene, name, inside - SILL * UP, rot, tolerance=0.006, timeout=10)
    scene = yield from open_gripper(scene)
    scene = yield from move_by(scene, -RETREAT * into, gripper=OPEN, tolerance=0.02, timeout=20)
    return (yield from move_by(scene, RETREAT * UP, gripper=OPEN, tolerance=0.03, timeout=20))


def _bring_before(scene: SceneState, name: str, region: str, joint: Joint, rot: np.ndarray) -> Skill:
    """Move a held cup in front of the opening: above the sill, hand at `rot`, midway between the walls."""
    into = inward(scene, region, joint)
    height = floor_of(scene, region, joint) + SILL + _reach(scene, name, -UP)
    before = np.append(scene.site(region).pos[:2], height)
    front = low(other_parts(scene, joint), into)
    before += (front - BEFORE - _reach(scene, name, into) - before @ into) * into
    raised = np.append(scene.pose(name).pos[:2], height)
    scene = yield from bring(scene, name, raised, rot, tolerance=0.03)
    scene = yield from bring(scene, name, before, rot, tolerance=0.01)
    before = before + _sideways(scene, name, region, joint, into)
    return (yield from bring(scene, name, before, rot, tolerance=0.008, timeout=30))


def pick_by_handle(scene: SceneState, name: str) -> Skill:
    """Grasps the bar of a cup's handle from above and outside, and lifts the cup."""
    bar, outward = cup_handle(scene, name)
    rot = leaning(-outward, -LEAN)
    grip = bar.pose.pos + GRIP_RISE * UP
    scene = yield from move_to(scene, grip - APPROACH * rot[:, 2], gripper=OPEN, rot=rot, tolerance=0.015)
    scene = yield from move_to(scene, grip, gripper=OPEN, rot=rot, tolerance=0.005, timeout=30)
    scene = yield from close_gripper(scene)
    return (yield from move_by(scene, LIFT * UP, gripper=CLOSE, tolerance=0.02, timeout=15))


def cup_handle(scene: SceneState, name: str) -> tuple[Box, np.ndarray]:
    """Return the bar of a cup's handle, its outermost shape, and the level direction [3] in which it sticks out."""
    boxes = object_parts(scene, name)
    middle = np.median([box.pose.pos for box in boxes], axis=0)
    bar = max(boxes, key=lambda box: np.linalg.norm((box.pose.pos - middle)[:2]))
    return bar, horizontal(bar.pose.pos - middle)


def inward(scene: SceneState, region: str, joint: Joint) -> np.ndarray:
    """Return the level unit vector [3] through the opening: across the closed door, towards the region's middle."""
    axis, anchor = scene.axis_of(joint.name), scene.joint_axis(joint.name).pos
    closed = axis_rotation(axis, joint_at(scene, joint, 0.0) - scene.joint(joint.name)) @ door_direction(scene, joint)
    to_middle = scene.site(region).pos - anchor
    return horizontal(to_middle - (to_middle @ closed) * closed)


def floor_of(scene: SceneState, region: str, joint: Joint) -> float:
    """Return the height of the floor inside, m: the highest top below the region's middle."""
    middle = scene.site(region).pos
    walls = other_parts(scene, joint)
    tops = [box.high(UP) for box in walls if _covers(box, middle) and box.high(UP) < middle[2]]
    return max(tops, default=low(walls, UP))


def _sideways(scene: SceneState, name: str, region: str, joint: Joint, into: np.ndarray) -> np.ndarray:
    """Return the shift [3] along the front that centres a held cup between the walls."""
    side, middle = np.cross(UP, into), scene.site(region).pos
    walls = [box for box in other_parts(scene, joint) if _crosses(box, middle, UP) and _crosses(box, middle, into)]
    left = max((box.high(side) for box in walls if box.high(side) < middle @ side), default=middle @ side)
    right = min((box.low(side) for box in walls if box.low(side) > middle @ side), default=middle @ side)
    cup = object_parts(scene, name)
    return ((left + right) - (low(cup, side) + high(cup, side))) / 2 * side


def _crosses(box: Box, point: np.ndarray, direction: np.ndarray) -> bool:
    """Whether a box reaches over the coordinate of `point` along `direction`."""
    return box.low(direction) < point @ direction < box.high(direction)


def _covers(box: Box, point: np.ndarray) -> bool:
    """Whether a point is above, in or below a box."""
    return all(_crosses(box, point, axis) for axis in np.eye(3)[:2])


def _region_front(scene: SceneState, region: str, into: np.ndarray) -> float:
    site = scene.site(region)
    return float(site.pos @ into - np.abs(site.rot @ scene.world.sites[region].size) @ np.abs(into))


def _reach(scene: SceneState, name: str, direction: np.ndarray) -> float:
    """Return the extent (m) of an object beyond its origin along `direction`."""
    return high(object_parts(scene, name), direction) - float(scene.pose(name).pos @ direction)
