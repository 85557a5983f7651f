"""Drawers: pull one open by its handle, push one shut by its front."""

from __future__ import annotations

import numpy as np

from services.libero.oracle.motion import (
    CLOSE,
    OPEN,
    REST_ROT,
    Skill,
    close_gripper,
    distance,
    move_by,
    move_to,
    open_gripper,
    servo,
)
from services.libero.oracle.parts import front_of, handle_of, open_limit, opening_direction, openness
from services.libero.oracle.scene import Joint, Scene

APPROACH = 0.10  # m in front of the handle where the hand turns towards it
GRASP_DEPTH = 0.005  # m that the grip site goes beyond the bar's middle, so that the pads hold all of it
LEAD = 0.05  # m that the pulling hand aims ahead of the handle
SLIPPED = 0.02  # m between hand and bar that says the bar is lost
WIDE_OPEN = 0.96  # of the joint's travel; LIBERO calls 0.88 of it open
UP = np.array([0.0, 0.0, 1.0])


def open_drawer(scene: Scene, joint: Joint, attempt: int = 0) -> Skill:
    """Grasps the handle from the front, fingers above and below it, and pulls until the drawer is wide open.

    Ends early when the bar slips out of the fingers; the next attempt takes it deeper.
    """
    out = opening_direction(scene, joint)
    rot = facing(-out, handle_of(scene, joint).long_axis, scene.eef.rot)
    depth = GRASP_DEPTH + 0.003 * (attempt % 3)
    scene = yield from move_to(scene, _grasp_point(scene, joint) + APPROACH * out, gripper=OPEN, rot=rot, timeout=70)
    scene = yield from move_to(scene, _grasp_point(scene, joint) - depth * out, gripper=OPEN, rot=rot, timeout=40)
    scene = yield from close_gripper(scene)
    scene = yield from _pull(scene, joint, rot, depth)
    scene = yield from open_gripper(scene)
    scene = yield from move_by(scene, APPROACH * out, gripper=OPEN, timeout=15, tolerance=0.03)
    return (yield from move_by(scene, 0.12 * UP, gripper=OPEN, timeout=15, tolerance=0.05))


def facing(approach: np.ndarray, along: np.ndarray, current: np.ndarray) -> np.ndarray:
    """Returns the hand rotation [3, 3] whose fingers point along `approach` and close across the direction `along`.

    Of the two such rotations, half a turn apart, the one nearer to the rotation `current`.
    """
    closing = np.cross(along, approach)
    closing /= np.linalg.norm(closing)
    if np.trace(current.T @ _hand(closing, approach)) < np.trace(current.T @ _hand(-closing, approach)):
        closing = -closing
    return _hand(closing, approach)


def _hand(closing: np.ndarray, approach: np.ndarray) -> np.ndarray:
    return np.stack([closing, np.cross(approach, closing), approach], axis=1)


def _grasp_point(scene: Scene, joint: Joint) -> np.ndarray:
    return handle_of(scene, joint).pose.pos


def _pull(scene: Scene, joint: Joint, rot: np.ndarray, depth: float) -> Skill:
    """Pulls the held handle along the joint's axis, correcting sideways, until wide open or lost."""
    out = opening_direction(scene, joint)
    for _ in range(90):
        held = _grasp_point(scene, joint) - depth * out
        if openness(scene, joint) > WIDE_OPEN or (scene.eef.pos - held) @ out > SLIPPED:
            break
        scene = yield servo(scene, held + LEAD * out, rot, CLOSE)
    return scene
