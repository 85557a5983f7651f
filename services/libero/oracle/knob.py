"""Knobs: grasp the wing from above and turn the hand around the joint's axis."""

from __future__ import annotations

from collections.abc import Callable

from services.libero.oracle.hand import axis_rotation, facing
from services.libero.oracle.motion import CLOSE, OPEN, Skill, close_gripper, move_by, move_to, open_gripper, servo
from services.libero.oracle.parts import open_sign, openness, wing_of
from services.libero.oracle.scene import Joint, SceneState

ABOVE = 0.08  # m over the knob where the hand turns to the wing
GRIP_DEPTH = 0.015  # m that the grip site goes below the wing's top
LEAD = 0.6  # rad that the turning hand aims ahead of the knob
TRAVEL = 0.45  # of the joint's range to turn to; LIBERO calls 0.24 of it on
OFF = 0.01  # of the range that still counts as the end
DEEPER = 0.003  # m more at each further attempt


def turn_on(scene: SceneState, joint: Joint, attempt: int = 0) -> Skill:
    """Turns a knob on: LIBERO's `TurnOn` requires 0.5 rad; the knob ends beyond that."""
    return (yield from _turn(scene, joint, attempt, open_sign(scene, joint), lambda s: openness(s, joint) > TRAVEL))


def turn_off(scene: SceneState, joint: Joint, attempt: int = 0) -> Skill:
    """Turns a knob back to the end of its range."""
    return (yield from _turn(scene, joint, attempt, -open_sign(scene, joint), lambda s: openness(s, joint) < OFF))


def _turn(scene: SceneState, joint: Joint, attempt: int, sign: float, enough: Callable[[SceneState], bool]) -> Skill:
    """Grasps the wing across its thin side and turns the hand on, `LEAD` ahead of the knob, until `enough(scene)`."""
    wing = wing_of(scene, joint)
    up = scene.axis_of(joint.name)
    length = wing.pose.rot[:, 0] if wing.half[0] > wing.half[1] else wing.pose.rot[:, 1]
    rot = facing(-up, length)
    grasp = scene.joint_axis(joint.name).pos
    grasp = grasp + up * (wing.high(up) - grasp @ up - GRIP_DEPTH - DEEPER * (attempt % 3))
    scene = yield from move_to(scene, grasp + ABOVE * up, gripper=OPEN, rot=rot)
    scene = yield from move_to(scene, grasp, gripper=OPEN, rot=rot, timeout=30)
    scene = yield from close_gripper(scene)
    start = scene.joint(joint.name)
    for _ in range(60):
        if enough(scene):
            break
        turned = scene.joint(joint.name) - start + sign * LEAD
        scene = yield servo(scene, grasp, axis_rotation(up, turned) @ rot, CLOSE)
    scene = yield from open_gripper(scene)
    return (yield from move_by(scene, ABOVE * up, gripper=OPEN, timeout=20, tolerance=0.02))
