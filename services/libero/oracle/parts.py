"""Geometry of things that move on joints, measured from their collision shapes: handles, wings, openings.

Nothing here knows a model by name, so a real asset and a stand-in of another shape are handled alike. Units: m, rad,
world frame.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from services.libero.oracle.scene import Geom, Joint, Pose, Scene
from services.libero.oracle.shapes import box_around


class Box(NamedTuple):
    """The oriented box around one shape: centre and axes in `pose`, half extents `half` [3] m."""

    pose: Pose
    half: np.ndarray

    @property
    def long_axis(self) -> np.ndarray:
        """The unit vector [3] along the longest edge."""
        return self.pose.rot[:, int(np.argmax(self.half))]

    def high(self, direction: np.ndarray) -> float:
        """Returns the largest coordinate of the box along the unit vector `direction` [3]."""
        return float(self.pose.pos @ direction + np.abs(direction @ self.pose.rot) @ self.half)

    def low(self, direction: np.ndarray) -> float:
        """Returns the smallest coordinate of the box along `direction`."""
        return -self.high(-direction)


def high(boxes: Iterable[Box], direction: np.ndarray) -> float:
    """Returns the largest coordinate of all boxes along the unit vector `direction` [3]."""
    return max(box.high(direction) for box in boxes)


def low(boxes: Iterable[Box], direction: np.ndarray) -> float:
    """Returns the smallest coordinate of all boxes along the unit vector `direction` [3]."""
    return min(box.low(direction) for box in boxes)


def parts_of(scene: Scene, bodies: Iterable[int]) -> list[Box]:
    """Returns the boxes around all collision shapes of some bodies."""
    chosen = set(bodies)
    return [_placed(scene, geom) for geom in scene.world.geoms if geom.body in chosen]


def object_parts(scene: Scene, name: str) -> list[Box]:
    """Returns the boxes around all collision shapes of an object."""
    return parts_of(scene, scene.world.objects[name].bodies)


def other_parts(scene: Scene, joint: Joint) -> list[Box]:
    """Returns the boxes around all shapes of what a drawer or door belongs to, without itself."""
    owner = scene.world.objects[scene.world.owner[joint.body]]
    return parts_of(scene, [body for body in owner.bodies if body != joint.body])


def opening_sign(scene: Scene, joint: Joint) -> float:
    """Returns +1 or -1: the direction of the joint's coordinate that opens the drawer or door or turns the knob on.

    LIBERO's ranges say it where the owner has some; else the far end of the joint's range does.
    """
    ranges = scene.world.objects[scene.world.owner[joint.body]].ranges
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
    boxes = parts_of(scene, [joint.body])
    farthest = high(boxes, out)
    return max((box for box in boxes if box.high(out) > farthest - 0.002), key=lambda box: box.half.max())


def panel_of(scene: Scene, joint: Joint) -> Box:
    """Returns a door's panel, the biggest of its shapes."""
    return max(parts_of(scene, [joint.body]), key=lambda box: box.half.prod())


def door_direction(scene: Scene, joint: Joint) -> np.ndarray:
    """Returns the unit vector [3] along a door, across its hinge, from the hinge to the free edge."""
    panel, hinge = panel_of(scene, joint), scene.axis_of(joint.name)
    flat = np.abs(hinge @ panel.pose.rot) < 0.5
    across = panel.pose.rot[:, int(np.argmax(np.where(flat, panel.half, 0.0)))]
    to_middle = panel.pose.pos - scene.joint_axis(joint.name).pos
    return across if across @ to_middle > 0 else -across


def wing_of(scene: Scene, joint: Joint, depth: float = 0.015) -> Box:
    """Returns the part of a knob to hold: a box around the shapes that reach within `depth` m of its top, its third
    axis along the joint, turned so that its thin side is as thin as can be."""
    up = scene.axis_of(joint.name)
    boxes = parts_of(scene, [joint.body])
    top = high(boxes, up)
    boxes = [box for box in boxes if box.high(up) > top - depth]
    return min((_around(boxes, axes) for axes in _turns(up)), key=lambda box: min(box.half[:2]))


def _around(boxes: list[Box], axes: np.ndarray) -> Box:
    """Returns the smallest box with the columns of `axes` [3, 3] as edges that holds all `boxes`."""
    least = np.array([low(boxes, axis) for axis in axes.T])
    most = np.array([high(boxes, axis) for axis in axes.T])
    return Box(Pose(axes @ ((least + most) / 2), axes), (most - least) / 2)


def _turns(up: np.ndarray, steps: int = 18) -> list[np.ndarray]:
    """Returns rotations [3, 3] with `up` as third axis, over a quarter turn about it."""
    side = np.cross(up, [1.0, 0.0, 0.0] if abs(up[0]) < 0.9 else [0.0, 1.0, 0.0])
    side /= np.linalg.norm(side)
    other = np.cross(up, side)
    angles = np.linspace(0, np.pi / 2, steps, endpoint=False)
    firsts = [np.cos(angle) * side + np.sin(angle) * other for angle in angles]
    return [np.stack([first, np.cross(up, first), up], axis=1) for first in firsts]


def _placed(scene: Scene, geom: Geom) -> Box:
    local = box_around(geom)
    return Box(scene.body_pose(geom.body) @ Pose(local.pos[0], local.rot[0]), local.half[0])
