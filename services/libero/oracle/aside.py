"""Looking ahead: an open drawer hangs over what stands close to it. What is to go in must stay within reach."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np

from services.libero.oracle.grasp import find_grasp
from services.libero.oracle.hand import UP
from services.libero.oracle.motion import Skill
from services.libero.oracle.parts import joint_at, opening_direction
from services.libero.oracle.pick_place import holds, pick, place
from services.libero.oracle.placements import Placement, resting_pos
from services.libero.oracle.scene import Joint, Scene
from services.libero.oracle.shapes import Boxes, boxes_of, obstacles, overlap

GAP = 0.01  # m to other objects at the new place
SHIFTS = tuple(product((0.04, 0.06, 0.08), (0.0, -0.03, 0.03, -0.06, 0.06)))  # m away from the cabinet, and sideways


def within_reach(scene: Scene, name: str, joint: Joint, openness: float) -> bool:
    """Returns whether an object could be grasped if the drawer were open by `openness` (0 to 1)."""
    drawer_out = opened(scene, joint, openness)
    return find_grasp(drawer_out, name) is not None


def opened(scene: Scene, joint: Joint, openness: float) -> Scene:
    """Returns the scene as it would be with a drawer open by `openness`."""
    body_pos = scene.body_pos.copy()
    body_pos[joint.body] += (joint_at(scene, joint, openness) - scene.joint(joint.name)) * scene.axis_of(joint.name)
    return replace(scene, body_pos=body_pos)


def set_aside(scene: Scene, name: str, joint: Joint) -> Skill:
    """Picks an object up and puts it down a little farther from the cabinet, where the table is free."""
    out = opening_direction(scene, joint)
    target = free_place(scene, name, out)
    scene = yield from pick(scene, name)
    if holds(scene, name):
        scene = yield from place(scene, name, Placement(resting_pos(scene, name, target, ""), ""))
    return scene


def free_place(scene: Scene, name: str, out: np.ndarray) -> np.ndarray:
    """Returns the nearest of some places [2] farther along `out` where an object hits no other."""
    own, start = boxes_of(scene, name), scene.pose(name).pos
    others = obstacles(scene, start, 0.3, exclude=(name, ""))
    side = np.cross(UP, out)
    shifts = [ahead * out + aside * side for ahead, aside in SHIFTS]
    free = [s for s in shifts if not overlap(Boxes(own.pos + s, own.rot, own.half + GAP), others).any()]
    return (start + (free or shifts)[0])[:2]
