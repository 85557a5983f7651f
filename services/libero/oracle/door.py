"""Doors on a vertical hinge: push them shut."""

from __future__ import annotations

import numpy as np

from services.libero.oracle.hand import NEUTRAL, UP, axis_rotation, facing
from services.libero.oracle.motion import CLOSE, Skill, move_by, move_to, servo
from services.libero.oracle.parts import door_direction, open_sign, openness, panel_of
from services.libero.oracle.scene import Joint, Pose, SceneState

GRIP = 0.7  # position of the push between hinge (0) and free edge (1)
BELOW_TOP = 0.025  # m from the door's top edge down to the grip site: the palm stays above the door
BEFORE = 0.06  # m in front of the door where the hand comes down
FINGER = 0.012  # m from the grip site to the side of the closed fingers
ABOVE = 0.12
LEAD = 0.35  # rad that the pushing hand aims ahead of the door
SHUT = 0.001  # of the door's travel


def close_door(scene: SceneState, joint: Joint) -> Skill:
    """Pushes a door shut from outside with the closed fingers, following its turn."""
    start = _push_pose(scene, joint, NEUTRAL, -BEFORE)
    scene = yield from move_to(
        scene, start.pos + ABOVE * UP, gripper=CLOSE, rot=start.rot, tolerance=0.03, angle_tolerance=0.3
    )
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
    axis, anchor = scene.axis_of(joint.name), scene.joint_axis(joint.name).pos
    panel = panel_of(scene, joint)
    across = door_direction(scene, joint)
    shut = -open_sign(scene, joint) * np.cross(axis, across)  # the way the door moves when it closes
    radius = GRIP * (panel.high(across) - anchor @ across)
    outside = panel.low(shut) - anchor @ shut - FINGER + gap
    pos = anchor + radius * across + outside * shut
    pos[2] = panel.high(UP) - BELOW_TOP
    turn = axis_rotation(axis, -open_sign(scene, joint) * ahead)
    return Pose(anchor + turn @ (pos - anchor), facing(-UP, turn @ shut, reference))
