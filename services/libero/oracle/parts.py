"""Geometry of articulated objects, measured from their collision shapes: handles, wings, openings.

No model is known by name, so official assets and the kit's differently shaped ones are handled alike. Units: m, rad,
world frame.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from services.libero.oracle.scene import Joint, Pose, SceneState
from services.libero.oracle.shapes import box_around


class Box(NamedTuple):
    """The oriented box around one shape: centre and axes in `pose`, half extents `half` [3] m."""

    pose: Pose
    half: np.ndarray

    def high(self, direction: np.ndarray) -> float:
        """Return the largest coordinate of the box along the unit vector `direction` [3]."""
        return float(self.pose.pos @ direction + np.abs(direction @ self.pose.rot) @ self.half)

    def low(self, direction: np.ndarray) -> float:
        """Return the smallest coordinate of the box along `direction`."""
        return -self.high(-direction)

    def crosses(self, point: np.ndarray, direction: np.ndarray) -> bool:
        """Return whether the box reaches over the coordinate of `point` along `direction`."""
        return self.low(direction) < point @ direction < self.high(direction)


def high(boxes: Iterable[Box], direction: np.ndarray) -> float:
    """Return the largest coordinate of all boxes along the unit vector `direction` [3]."""
    return max(box.high(direction) for box in boxes)


def low(boxes: Iterable[Box], direction: np.ndarray) -> float:
    """Return the smallest coordinate of all boxes along the unit vector `direction` [3]."""
    return min(box.low(direction) for box in boxes)


def parts_of(scene: SceneState, bodies: Iterable[int]) -> list[Box]:
    """Return the boxes around all collision shapes of some bodies."""
    selected, parts = set(bodies), []
    for geom in scene.world.geoms:
        if geom.body in selected:
            local = box_around(geom)
            pose = scene.body_pose(geom.body) @ Pose(local.pos[0], local.rot[0])
            parts.append(Box(pose, local.half[0]))
    return parts


def object_parts(scene: SceneState, name: str) -> list[Box]:
    """Return the boxes around all collision shapes of an object."""
    return parts_of(scene, scene.world.objects[name].bodies)


def other_parts(scene: SceneState, joint: Joint) -> list[Box]:
    """Return the boxes around all shapes of the owner of a drawer or door, without the drawer or door itself."""
    owner = scene.world.objects[scene.world.owner[joint.body]]
    return parts_of(scene, [body for body in owner.bodies if body != joint.body])


def joint_of(scene: SceneState, name: str) -> Joint | None:
    """Return the first joint that moves a goal's region or object; None if there is none."""
    world = scene.world
    if name in world.regions:
        names = world.regions[name].joints
        return world.joints[names[0]] if names else None
    return next((joint for joint in world.joints.values() if world.owner[joint.body] == name), None)


def open_sign(scene: SceneState, joint: Joint) -> float:
    """Return +1 or -1: the direction of the joint's coordinate that opens the drawer or door or turns the knob on.

    It follows from LIBERO's ranges if the owner has some, else from the middle of the joint's range.
    """
    ranges = scene.world.objects[scene.world.owner[joint.body]].ranges
    on = ranges.get("default_open_ranges") or ranges.get("default_turnon_ranges")
    return 1.0 if float(np.mean(on if on else joint.range)) > 0 else -1.0


def open_direction(scene: SceneState, joint: Joint) -> np.ndarray:
    """Return the unit vector [3] in which a drawer slides open."""
    return open_sign(scene, joint) * scene.axis(joint)


def openness(scene: SceneState, joint: Joint) -> float:
    """Return the joint's openness: 0 closed, 1 wide open (or turned on)."""
    closed = joint_at(scene, joint, 0.0)
    end = joint.range[1] if open_sign(scene, joint) > 0 else joint.range[0]
    return (scene.joint(joint) - closed) / (end - closed)


def joint_at(scene: SceneState, joint: Joint, openness: float) -> float:
    """Return the joint's coordinate, m or rad, at which it is open by `openness` (0 to 1)."""
    closed, end = joint.range if open_sign(scene, joint) > 0 else joint.range[::-1]
    return closed + openness * (end - closed)


def handle_of(scene: SceneState, joint: Joint) -> Box:
    """Return a drawer's handle bar: the shape that reaches farthest in the opening direction."""
    out = open_direction(scene, joint)
    boxes = parts_of(scene, [joint.body])
    farthest = high(boxes, out)
    return max((box for box in boxes if box.high(out) > farthest - 0.002), key=lambda box: box.half.max())


def panel_of(scene: SceneState, joint: Joint) -> Box:
    """Return a door's panel, the biggest of its shapes."""
    return max(parts_of(scene, [joint.body]), key=lambda box: box.half.prod())


def door_direction(scene: SceneState, joint: Joint) -> np.ndarray:
    """Return the unit vector [3] along a door, across its hinge, from the hinge to the free edge."""
    panel, hinge = panel_of(scene, joint), scene.axis(joint)
    flat = np.abs(hinge @ panel.pose.rot) < 0.5
    across = panel.pose.rot[:, int(np.argmax(np.where(flat, panel.half, 0.0)))]
    return across if across @ (panel.pose.pos - scene.anchor(joint)) > 0 else -across


def wing_of(scene: SceneState, joint: Joint, depth: float = 0.015, steps: int = 18) -> Box:
    """Return the part of a knob to hold: a box around the shapes that reach within `depth` m of its top, its third
    axis along the joint, turned (in one of `steps`) so that its thin side is as thin as possible."""
    up = scene.axis(joint)
    boxes = parts_of(scene, [joint.body])
    top = high(boxes, up)
    boxes = [box for box in boxes if box.high(up) > top - depth]
    side = np.cross(up, [1.0, 0.0, 0.0] if abs(up[0]) < 0.9 else [0.0, 1.0, 0.0])
    side /= np.linalg.norm(side)
    other = np.cross(up, side)
    wings = []
    for angle in np.linspace(0, np.pi / 2, steps, endpoint=False):
        first = np.cos(angle) * side + np.sin(angle) * other
        axes = np.stack([first, np.cross(up, first), up], axis=1)
        lower = np.array([low(boxes, axis) for axis in axes.T])
        upper = np.array([high(boxes, axis) for axis in axes.T])
        wings.append(Box(Pose(axes @ ((lower + upper) / 2), axes), (upper - lower) / 2))
    return min(wings, key=lambda box: min(box.half[:2]))
