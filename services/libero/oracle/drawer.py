"""Drawers: pull one open by its handle, push one shut by it."""

from __future__ import annotations

import numpy as np

from services.libero.oracle.hand import UP, facing, leaning
from services.libero.oracle.motion import (
    CLOSE,
    FINGERTIP,
    OPEN,
    Skill,
    close_gripper,
    move_by,
    move_to,
    open_gripper,
    servo,
)
from services.libero.oracle.parts import handle_of, open_direction, openness
from services.libero.oracle.scene import Joint, Pose, SceneState

APPROACH = 0.10  # m in front of the handle where the hand turns towards it
RETREAT = 0.12  # m upwards afterwards
GRASP_DEPTH = 0.005  # m that the grip site goes beyond the bar's middle, so that the pads cover it
LEAD = 0.05  # m that the pulling hand aims ahead of the handle
NARROW = 0.055  # m between the fingers during the approach
STAY = 0.0  # gripper command that keeps its opening
SLOW = 0.012  # m of lead left at the end, so that the drawer stops at its target
SLIPPED = 0.02  # m between hand and bar that count as a lost grip
LEAN_OPEN, LEAN_SHUT = -0.6, -1.2  # rad that the hand leans back when it pushes a drawer: from wide open to shut
BEFORE = 0.05  # m in front of the handle where the push starts
SHUT = 0.02  # of the joint's travel; LIBERO requires less than 0.06
WIDE_OPEN = 0.96  # of the joint's travel; LIBERO calls 0.88 of it open


def open_drawer(scene: SceneState, joint: Joint, attempt: int = 0, until: float = WIDE_OPEN) -> Skill:
    """Grasps the handle from the front, fingers above and below it, and pulls until the drawer is open by `until`.

    Ends early if the bar slips out of the fingers; the next attempt grasps deeper.
    """
    out = open_direction(scene, joint)
    rot = facing(-out, handle_of(scene, joint).long_axis)
    depth = GRASP_DEPTH + 0.003 * (attempt % 3)
    scene = yield from move_to(scene, _grasp_point(scene, joint) + APPROACH * out, gripper=OPEN, rot=rot, timeout=70)
    scene = yield from _narrow(scene, rot)
    scene = yield from move_to(scene, _grasp_point(scene, joint) - depth * out, gripper=STAY, rot=rot, timeout=40)
    scene = yield from close_gripper(scene)
    scene = yield from _pull(scene, joint, rot, depth, until)
    scene = yield from open_gripper(scene)
    scene = yield from move_by(scene, APPROACH * out, gripper=OPEN, timeout=15, tolerance=0.03)
    return (yield from move_by(scene, RETREAT * UP, gripper=OPEN, timeout=15, tolerance=0.05))


def _narrow(scene: SceneState, rot: np.ndarray) -> Skill:
    """Closes the fingers halfway, so that they pass between the handles of neighbouring drawers."""
    pos = scene.eef.pos
    for _ in range(8):
        if scene.gripper_gap <= NARROW:
            break
        scene = yield servo(scene, pos, rot, CLOSE)
    return scene


def close_drawer(scene: SceneState, joint: Joint) -> Skill:
    """Pushes a drawer shut by its handle with the closed fingertips; LIBERO's `Close` requires less than its zero."""
    out = open_direction(scene, joint)
    start = _push_pose(scene, joint, BEFORE * out)
    above = start.pos + BEFORE * (out + UP)
    scene = yield from move_to(scene, above, gripper=CLOSE, rot=start.rot, tolerance=0.03, angle_tolerance=0.3)
    scene = yield from move_to(scene, start.pos, gripper=CLOSE, rot=start.rot, tolerance=0.015, timeout=30)
    for _ in range(80):
        if openness(scene, joint) < SHUT:
            break
        pose = _push_pose(scene, joint, -LEAD * out)
        scene = yield servo(scene, pose.pos, pose.rot, CLOSE)
    return (yield from move_by(scene, BEFORE * (UP + out), gripper=CLOSE, timeout=15, tolerance=0.05))


def _push_pose(scene: SceneState, joint: Joint, shift: np.ndarray) -> Pose:
    """Return the hand's pose with its fingertips at the front of the handle, shifted by `shift` [3] m.

    The further the drawer is closed, the more the hand leans back, so that its palm avoids the handles above.
    """
    out = open_direction(scene, joint)
    bar = handle_of(scene, joint)
    front = bar.pose.pos + (bar.high(out) - bar.pose.pos @ out) * out
    rot = leaning(-out, LEAN_SHUT + (LEAN_OPEN - LEAN_SHUT) * openness(scene, joint), scene.eef.rot)
    return Pose(front - FINGERTIP * rot[:, 2] + shift, rot)


def _grasp_point(scene: SceneState, joint: Joint) -> np.ndarray:
    return handle_of(scene, joint).pose.pos


def _pull(scene: SceneState, joint: Joint, rot: np.ndarray, depth: float, until: float) -> Skill:
    """Pulls the held handle along the joint's axis, correcting sideways, until far enough or lost."""
    out = open_direction(scene, joint)
    travel = joint.range[1] - joint.range[0]
    for _ in range(90):
        grip_point = _grasp_point(scene, joint) - depth * out
        rest = (until - openness(scene, joint)) * travel
        if rest < 0 or (scene.eef.pos - grip_point) @ out > SLIPPED:
            break
        scene = yield servo(scene, grip_point + min(LEAD, SLOW + rest) * out, rot, CLOSE)
    return scene
