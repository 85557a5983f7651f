"""Putting a cup into something that opens to the front, such as a microwave: held by its handle, handle towards us."""

from __future__ import annotations

import numpy as np

from services.libero.oracle.door import panel_of
from services.libero.oracle.fill import bring
from services.libero.oracle.hand import UP, about, leaning, level
from services.libero.oracle.motion import CLOSE, OPEN, Skill, close_gripper, move_by, move_to, open_gripper
from services.libero.oracle.parts import Box, boxes_of, joint_at
from services.libero.oracle.pick_place import holds
from services.libero.oracle.scene import Joint, Scene

LEAN = 0.5  # rad that the hand leans back: the palm stays out of the way of rim and ceiling
APPROACH = 0.09  # m along the fingers to come to the handle
GRIP_RISE = 0.008  # m above the middle of the handle's bar where the grip site goes
LIFT = 0.06
SILL = 0.015  # m above the floor inside at which the cup goes in
BEFORE = 0.03  # m before the front where the cup stops and turns
INSIDE = 0.018  # m that the cup's origin goes beyond the edge of the goal region
WALL_GAP = 0.008  # m to the walls inside
RETREAT = 0.10


def put_in_front(scene: Scene, name: str, region: str, joint: Joint) -> Skill:
    """Picks a cup up by its handle, turns the handle to the front, moves it in over the sill and lets it down.

    `region` is the goal region inside, `joint` the hinge of the open door.
    """
    scene = yield from pick_by_handle(scene, name)
    if not holds(scene, name):
        return scene
    into = inward(scene, region, joint)
    rot = leaning(into, -LEAN, scene.eef.rot)
    height = floor_of(scene, region, joint) + SILL + _standing(scene, name)
    before = np.append(scene.site(region).pos[:2], height)
    before += into * (_front(scene, joint, into) - BEFORE - _reach(scene, name, into) - before @ into)
    scene = yield from bring(scene, name, np.append(scene.pose(name).pos[:2], height), rot, tolerance=0.03)
    scene = yield from bring(scene, name, before, rot, tolerance=0.01)
    inside = before + _sideways(scene, name, region, joint, into)
    scene = yield from bring(scene, name, inside, rot, tolerance=0.008, timeout=30)
    depth = _region_front(scene, region, into) + INSIDE - inside @ into
    scene = yield from bring(scene, name, inside + depth * into, rot, tolerance=0.006, timeout=40, speed=0.7)
    scene = yield from bring(scene, name, inside + depth * into - SILL * UP, rot, tolerance=0.006, timeout=10)
    scene = yield from open_gripper(scene)
    scene = yield from move_by(scene, -RETREAT * into, gripper=OPEN, tolerance=0.02, timeout=20)
    return (yield from move_by(scene, RETREAT * UP, gripper=OPEN, tolerance=0.03, timeout=20))


def pick_by_handle(scene: Scene, name: str) -> Skill:
    """Grasps the bar of a cup's handle from above and outside, and lifts the cup."""
    bar, outward = handle_of(scene, name)
    rot = leaning(-outward, -LEAN)
    grip = bar.pose.pos + GRIP_RISE * UP
    scene = yield from move_to(scene, grip - APPROACH * rot[:, 2], gripper=OPEN, rot=rot, tolerance=0.015)
    scene = yield from move_to(scene, grip, gripper=OPEN, rot=rot, tolerance=0.005, timeout=30)
    scene = yield from close_gripper(scene)
    return (yield from move_by(scene, LIFT * UP, gripper=CLOSE, tolerance=0.02, timeout=15))


def handle_of(scene: Scene, name: str) -> tuple[Box, np.ndarray]:
    """Returns the bar of a cup's handle, its outermost shape, and the level direction [3] in which it sticks out."""
    boxes = _boxes(scene, name)
    middle = np.median([box.pose.pos for box in boxes], axis=0)
    bar = max(boxes, key=lambda box: np.linalg.norm((box.pose.pos - middle)[:2]))
    return bar, level(bar.pose.pos - middle)


def inward(scene: Scene, region: str, joint: Joint) -> np.ndarray:
    """Returns the level unit vector [3] through the opening: across the closed door, towards the region's middle."""
    axis, anchor = scene.axis_of(joint.name), scene.joint_axis(joint.name).pos
    across = level(panel_of(scene, joint).pose.pos - anchor)
    closed = about(axis, joint_at(scene, joint, 0.0) - scene.joint(joint.name)) @ across
    to_middle = scene.site(region).pos - anchor
    return level(to_middle - (to_middle @ closed) * closed)


def floor_of(scene: Scene, region: str, joint: Joint) -> float:
    """Returns the height of the floor inside, m: the highest top below the region's middle."""
    middle = scene.site(region).pos
    tops = [box.reach(UP) for box in _walls(scene, joint) if _covers(box, middle) and box.reach(UP) < middle[2]]
    return max(tops, default=-_lowest(_walls(scene, joint)))


def _sideways(scene: Scene, name: str, region: str, joint: Joint, into: np.ndarray) -> np.ndarray:
    """Returns the shift [3] along the front after which a cup held before it has the most room on its way in."""
    side = np.cross(UP, into)
    middle = scene.site(region).pos
    walls = [box for box in _walls(scene, joint) if box.reach(UP) > middle[2] and -box.reach(-UP) < middle[2]]
    left = max((box.reach(side) for box in walls if _is_beside(box, middle, -side, into)), default=-np.inf)
    right = min((-box.reach(-side) for box in walls if _is_beside(box, middle, side, into)), default=np.inf)
    boxes = _boxes(scene, name)
    low, high = -max(box.reach(-side) for box in boxes), max(box.reach(side) for box in boxes)
    room = (left + right) / 2
    target = room if np.isfinite(room) else middle @ side
    return (target - (low + high) / 2) * side


def _is_beside(box: Box, middle: np.ndarray, direction: np.ndarray, into: np.ndarray) -> bool:
    """Whether a wall stands beside `middle` on the side of `direction`, not behind it."""
    return -box.reach(-direction) > middle @ direction and -box.reach(-into) < middle @ into < box.reach(into)


def _walls(scene: Scene, joint: Joint) -> list[Box]:
    """Returns the shapes of what the door belongs to, without the door."""
    owner = scene.world.things[scene.world.owner[joint.body]]
    return boxes_of(scene, [body for body in owner.bodies if body != joint.body])


def _boxes(scene: Scene, name: str) -> list[Box]:
    return boxes_of(scene, scene.world.things[name].bodies)


def _front(scene: Scene, joint: Joint, into: np.ndarray) -> float:
    return -max(box.reach(-into) for box in _walls(scene, joint))


def _region_front(scene: Scene, region: str, into: np.ndarray) -> float:
    site = scene.site(region)
    return float(site.pos @ into - np.abs(site.rot @ scene.world.sites[region].size) @ np.abs(into))


def _reach(scene: Scene, name: str, direction: np.ndarray) -> float:
    """Returns how far an object reaches beyond its origin along `direction`, m."""
    return max(box.reach(direction) for box in _boxes(scene, name)) - float(scene.pose(name).pos @ direction)


def _standing(scene: Scene, name: str) -> float:
    """Returns how high an object's origin is above its lowest point, m."""
    return _reach(scene, name, -UP)


def _covers(box: Box, point: np.ndarray) -> bool:
    half = np.abs(box.pose.rot) @ box.half
    return bool(np.all(np.abs(point - box.pose.pos)[:2] < half[:2]))


def _lowest(boxes: list[Box]) -> float:
    return max(box.reach(-UP) for box in boxes)
