"""Knobs: grasp the wing from above and turn the hand around the joint's axis."""

from __future__ import annotations

from services.libero.oracle.motion import (
    CLOSE,
    OPEN,
    Skill,
    axis_rotation,
    close_gripper,
    facing,
    move_by,
    move_to,
    open_gripper,
    servo,
)
from services.libero.oracle.parts import open_sign, openness, wing_of
from services.libero.oracle.scene import Joint, SceneState

ABOVE = 0.08  # m over the knob where the hand turns to the wing
GRIP_DEPTH = 0.015  # m that the grip site goes below the wing's top
LEAD = 0.6  # rad that the turning hand aims ahead of the knob
ON = 0.45  # of the joint's range to turn to; LIBERO calls 0.24 of it (0.5 rad) on
OFF = 0.01  # of the range that still counts as the end
DEEPER = 0.003  # m more at each further attempt


def turn(scene: SceneState, joint: Joint, attempt: int, on: bool) -> Skill:
    """Grasps the wing across its thin side and turns the hand, `LEAD` ahead of the knob, until it is on or off."""
    sign = open_sign(scene, joint) if on else -open_sign(scene, joint)
    wing = wing_of(scene, joint)
    up = scene.axis(joint)
    length = wing.pose.rot[:, 0] if wing.half[0] > wing.half[1] else wing.pose.rot[:, 1]
    rot = facing(-up, length)
    grasp = scene.anchor(joint)
    grasp = grasp + up * (wing.high(up) - grasp @ up - GRIP_DEPTH - DEEPER * (attempt % 3))
    scene = yield from move_to(scene, grasp + ABOVE * up, gripper=OPEN, rot=rot)
    scene = yield from move_to(scene, grasp, gripper=OPEN, rot=rot, timeout=30)
    scene = yield from close_gripper(scene)
    start = scene.joint(joint)
    for _ in range(60):
        if openness(scene, joint) > ON if on else openness(scene, joint) < OFF:
            break
        turned = scene.joint(joint) - start + sign * LEAD
        scene = yield servo(scene, grasp, axis_rotation(up, turned) @ rot, CLOSE)
    scene = yield from open_gripper(scene)
    return (yield from move_by(scene, ABOVE * up, gripper=OPEN, timeout=20, tolerance=0.02))
