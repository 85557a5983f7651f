"""Move an object out of the way of a drawer: an open drawer would hang over it and block the grasp."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np

from services.libero.oracle.grasp import find_grasp
from services.libero.oracle.hand import UP
from services.libero.oracle.motion import Skill
from services.libero.oracle.parts import joint_at, open_direction
from services.libero.oracle.pick_place import holds, pick, place
from services.libero.oracle.placements import Placement, resting_pos
from services.libero.oracle.scene import Joint, SceneState
from services.libero.oracle.shapes import Boxes, boxes_of, obstacles, overlap

GAP = 0.01  # m to other objects at the new position
SHIFTS = tuple(product((0.04, 0.06, 0.08), (0.0, -0.03, 0.03, -0.06, 0.06)))  # m away from the cabinet, and sideways


def within_reach(scene: SceneState, name: str, joint: Joint, openness: float) -> bool:
    """Return whether an object could be grasped with the drawer open by `openness` (0 to 1)."""
    drawer_out = opened(scene, joint, openness)
    return find_grasp(drawer_out, name) is not None


def opened(scene: SceneState, joint: Joint, openness: float) -> SceneState:
    """Return the scene as it would be with a drawer open by `openness`."""
    body_pos = scene.body_pos.copy()
    body_pos[joint.body] += (joint_at(scene, joint, openness) - scene.joint(joint.name)) * scene.axis_of(joint.name)
    return replace(scene, body_pos=body_pos)


def set_aside(scene: SceneState, name: str, joint: Joint) -> Skill:
    """Pick up an object and put it down a little farther from the cabinet, on a free part of the table."""
    out = open_direction(scene, joint)
    target = free_position(scene, name, out)
    scene = yield from pick(scene, name)
    if holds(scene, name):
        scene = yield from place(scene, name, Placement(resting_pos(scene, name, target, ""), ""))
    return scene


def free_position(scene: SceneState, name: str, out: np.ndarray) -> np.ndarray:
    """Return the nearest candidate position [2] along `out` where an object hits no other."""
    boxes, start = boxes_of(scene, name), scene.pose(name).pos
    neighbours = obstacles(scene, start, 0.3, exclude=(name, ""))
    side = np.cross(UP, out)
    shifts = [ahead * out + aside * side for ahead, aside in SHIFTS]
    free = [s for s in shifts if not overlap(Boxes(boxes.pos + s, boxes.rot, boxes.half + GAP), neighbours).any()]
    return (start + (free or shifts)[0])[:2]
