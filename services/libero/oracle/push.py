"""Push a flat object over the table with two fingertips behind it, steering by its motion."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from services.libero.oracle.motion import FINGERTIP, OPEN, Skill, horizontal, leaning, move_by, move_to, servo
from services.libero.oracle.parts import high, low, object_parts
from services.libero.oracle.scene import UP, SceneState

CLEARANCE = 0.003  # m between the fingertips and the surface
BEHIND = 0.018  # m behind the object's edge where the fingertips come down
ABOVE = 0.07
LEAN_DOWN, LEAN_PUSH = 0.8, 0.35  # rad that the hand leans over the object, like a rake: it needs little room behind
LEAD = 0.04  # m that the pushing hand aims ahead of itself
STEER = 1.5  # gain of the sideways motion that keeps the hand behind the object
ARRIVAL_DISTANCE = 0.012  # m from the target


def push_to(scene: SceneState, name: str, target: np.ndarray) -> Skill:
    """Push an object around obstacles until its origin is within `ARRIVAL_DISTANCE` of `target` [2] (world x, y).

    Ends early if the object slips past the hand; call it again then.
    """
    for point in route(scene, name, target):
        scene = yield from _push_straight(scene, name, point)
        if np.linalg.norm(scene.pose(name).pos[:2] - point) > 2 * ARRIVAL_DISTANCE:
            break
    return scene


def _push_straight(scene: SceneState, name: str, target: np.ndarray) -> Skill:
    """Comes down behind the object with the open fingers side by side, which cradle it, and pushes to `target` [2]."""
    boxes = object_parts(scene, name)
    centre = scene.pose(name).pos[:2]
    away = horizontal(target - centre)
    rot = leaning(away, LEAN_DOWN)
    back = centre @ away[:2] - low(boxes, away) + BEHIND
    start = np.append(centre, low(boxes, UP) + CLEARANCE) - back * away - FINGERTIP * rot[:, 2]
    over = np.append(centre, start[2] + 2 * ABOVE) + 0.03 * away
    scene = yield from move_to(scene, over, gripper=OPEN, rot=rot, tolerance=0.03, angle_tolerance=0.3)
    scene = yield from move_to(scene, start + ABOVE * UP, gripper=OPEN, rot=rot, tolerance=0.015, timeout=40)
    scene = yield from move_to(scene, start, gripper=OPEN, rot=rot, timeout=30)
    for _ in range(120):
        centre = scene.pose(name).pos[:2]
        ahead = horizontal(target - centre)
        offset = np.append(scene.eef.pos[:2] - centre, 0.0)
        if np.linalg.norm(target - centre) < ARRIVAL_DISTANCE or offset @ ahead > 0:
            break
        sideways = offset - ahead * (offset @ ahead)
        aim = scene.eef.pos + LEAD * ahead - STEER * sideways
        aim[2] = start[2]
        scene = yield servo(scene, aim, leaning(ahead, LEAN_PUSH, scene.eef.rot), OPEN)
    scene = yield from move_by(scene, -0.04 * away, gripper=OPEN, timeout=12, tolerance=0.015)
    return (yield from move_by(scene, ABOVE * UP, gripper=OPEN, timeout=15, tolerance=0.03))


def route(scene: SceneState, name: str, target: np.ndarray) -> list[np.ndarray]:
    """Return the points [2] to push through: straight, or around one corner if that is less obstructed."""
    start = scene.pose(name).pos[:2]
    corners = [np.array([start[0], target[1]]), np.array([target[0], start[1]])]
    paths = [[target], *([corner, target] for corner in corners)]
    radius = radius_of(scene, name)
    others = [other for other, thing in scene.world.objects.items() if thing.movable and other != name]

    def cost(path: list[np.ndarray]) -> float:
        """The overlap (m) with other movable objects, summed over them, and a little for every leg."""
        total = 0.0
        for other in others:
            pos = scene.pose(other).pos[:2]
            gap = min(_distance_to_segment(pos, a, b) for a, b in pairwise([start, *path]))
            total += max(0.0, radius + radius_of(scene, other) - gap)
        return total + 0.01 * len(path)

    return min(paths, key=cost)


def is_flat(scene: SceneState, name: str) -> bool:
    """Return whether an object is at least four times as wide as it is high, like a plate."""
    boxes = object_parts(scene, name)
    return 2 * radius_of(scene, name) > 4 * (high(boxes, UP) - low(boxes, UP))


def radius_of(scene: SceneState, name: str) -> float:
    """Return the horizontal radius (m) of an object around its origin: the largest of twelve directions."""
    boxes, middle = object_parts(scene, name), scene.pose(name).pos
    turns = np.linspace(0, 2 * np.pi, 12, endpoint=False)
    directions = np.stack([np.cos(turns), np.sin(turns), np.zeros(12)], axis=1)
    return max(high(boxes, direction) - float(middle @ direction) for direction in directions)


def _distance_to_segment(point: np.ndarray, start: np.ndarray, end: np.ndarray) -> float:
    along = end - start
    part = np.clip((point - start) @ along / max(along @ along, 1e-12), 0.0, 1.0)
    return float(np.linalg.norm(point - start - part * along))
