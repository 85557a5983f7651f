"""Geometry of things that move on joints, measured from their collision shapes: handles, wings, doors, faces.

Nothing here knows a model by name, so a real asset and a stand-in of another shape are handled alike. Units: m, rad,
world frame; `Box` is an oriented box.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from services.libero.oracle.scene import Geom, Joint, Pose, Scene

SIGNS = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], dtype=np.float64)


class Box(NamedTuple):
    """An oriented box: centre and axes in `pose`, half extents `half` [3] m."""

    pose: Pose
    half: np.ndarray

    @property
    def corners(self) -> np.ndarray:
        """The corners [8, 3]."""
        return self.pose.apply(SIGNS * self.half)

    @property
    def long_axis(self) -> np.ndarray:
        """The unit vector [3] along the longest edge."""
        return self.pose.rot[:, int(np.argmax(self.half))]

    def reach(self, direction: np.ndarray) -> float:
        """Returns the largest coordinate of the box along `direction` [3]."""
        return float(np.max(self.corners @ direction))


def box_of(scene: Scene, geom: Geom) -> Box:
    """Returns the box around a collision shape, at its place in the world."""
    return Box(scene.body_pose(geom.body) @ geom.local, _half_extents(geom))


def boxes_of(scene: Scene, bodies: Iterable[int]) -> list[Box]:
    """Returns the boxes around all collision shapes of some bodies."""
    chosen = set(bodies)
    return [box_of(scene, geom) for geom in scene.world.geoms if geom.body in chosen]


def bounds(boxes: Iterable[Box], axes: np.ndarray) -> Box:
    """Returns the smallest box with the columns of `axes` [3, 3] as edges that holds all `boxes`."""
    points = np.concatenate([box.corners for box in boxes]) @ axes
    low, high = points.min(axis=0), points.max(axis=0)
    return Box(Pose(axes @ ((low + high) / 2), axes), (high - low) / 2)


def opening_sign(scene: Scene, joint: Joint) -> float:
    """Returns +1 or -1: the direction of the joint's coordinate that opens the drawer or door or turns the knob on.

    LIBERO's ranges say it where the owner has some; else the far end of the joint's range does.
    """
    ranges = scene.world.things[scene.world.owner[joint.body]].ranges
    on = ranges.get("default_open_ranges") or ranges.get("default_turnon_ranges")
    middle = float(np.mean(on if on else joint.range))
    return 1.0 if middle > 0 else -1.0


def opening_direction(scene: Scene, joint: Joint) -> np.ndarray:
    """Returns the unit vector [3] in which a drawer slides open."""
    return opening_sign(scene, joint) * scene.axis_of(joint.name)


def open_limit(scene: Scene, joint: Joint) -> float:
    """Returns the end of the joint's range where the thing is wide open (or turned on), m or rad."""
    return joint.range[1] if opening_sign(scene, joint) > 0 else joint.range[0]


def openness(scene: Scene, joint: Joint) -> float:
    """Returns how far the joint has moved from its closed end: 0 closed, 1 wide open."""
    closed = joint_at(scene, joint, 0.0)
    return (scene.joint(joint.name) - closed) / (open_limit(scene, joint) - closed)


def joint_at(scene: Scene, joint: Joint, openness: float) -> float:
    """Returns the joint's coordinate, m or rad, at which it is open by `openness` (0 to 1)."""
    end = open_limit(scene, joint)
    closed = joint.range[0] if end == joint.range[1] else joint.range[1]
    return closed + openness * (end - closed)


def handle_of(scene: Scene, joint: Joint) -> Box:
    """Returns the bar to pull a drawer by: of its shapes, the one that sticks out farthest in the opening direction."""
    out = opening_direction(scene, joint)
    boxes = boxes_of(scene, [joint.body])
    farthest = max(box.reach(out) for box in boxes)
    return max((box for box in boxes if box.reach(out) > farthest - 0.002), key=lambda box: box.half.max())


def wing_of(scene: Scene, joint: Joint, depth: float = 0.015) -> Box:
    """Returns the part of a knob to hold: a box around the shapes that reach within `depth` m of its top."""
    up = scene.axis_of(joint.name)
    boxes = boxes_of(scene, [joint.body])
    top = max(box.reach(up) for box in boxes)
    return _tightest([box for box in boxes if box.reach(up) > top - depth], up)


def _tightest(boxes: list[Box], up: np.ndarray, steps: int = 18) -> Box:
    """Returns, of the bounding boxes with an edge along `up`, the one with the thinnest side."""
    side = np.cross(up, [1.0, 0.0, 0.0]) if abs(up[0]) < 0.9 else np.cross(up, [0.0, 1.0, 0.0])
    side /= np.linalg.norm(side)
    other = np.cross(up, side)
    found = []
    for angle in np.linspace(0, np.pi / 2, steps, endpoint=False):
        x = np.cos(angle) * side + np.sin(angle) * other
        found.append(bounds(boxes, np.stack([x, np.cross(up, x), up], axis=1)))
    return min(found, key=lambda box: min(box.half[:2]))


def _half_extents(geom: Geom) -> np.ndarray:
    """Returns the half extents [3] of the box around a shape, from MuJoCo's sizes."""
    a, b, c = geom.size
    if geom.type == "sphere":
        return np.array([a, a, a])
    if geom.type == "capsule":
        return np.array([a, a, a + b])
    if geom.type == "cylinder":
        return np.array([a, a, b])
    return np.array([a, b, c])
