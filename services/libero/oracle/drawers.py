"""Drawers: pull one open by its handle, put an object in, push it shut."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np

from services.libero.oracle.grasp import find_grasp
from services.libero.oracle.motion import (
    CLOSE,
    FINGERTIP,
    OPEN,
    Skill,
    approach,
    close_gripper,
    facing,
    horizontal,
    leaning,
    move_by,
    move_to,
    open_gripper,
    servo,
)
from services.libero.oracle.parts import (
    Box,
    handle_of,
    high,
    joint_at,
    low,
    object_parts,
    open_direction,
    openness,
    other_parts,
    parts_of,
)
from services.libero.oracle.pick_place import LOST, carry, holds, pick, place, reach_below, travel_height
from services.libero.oracle.placements import Placement, resting_pos
from services.libero.oracle.scene import UP, Joint, Pose, SceneState
from services.libero.oracle.shapes import boxes_of, obstacles, overlap

APPROACH = 0.10  # m in front of the handle where the hand turns towards it
RETREAT, FOLD = 0.12, 0.12  # m upwards and towards the arm's base afterwards
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
# openness to pull a drawer to before filling it: a wider open one would hang over objects in front of the cabinet
ROOMY, OVERSHOOT = 0.8, 0.04
DROP = 0.012  # m above the drawer's floor where the object is released
MAX_RISE = 0.06
CLEAR = 0.02  # m between the open drawer and an object raised next to it
GAP = 0.01  # m to other objects where an object is set aside
SHIFTS = tuple(product((0.04, 0.06, 0.08), (0.0, -0.03, 0.03, -0.06, 0.06)))  # m away from the cabinet, and sideways


def open_drawer(scene: SceneState, joint: Joint, attempt: int = 0, until: float = WIDE_OPEN) -> Skill:
    """Grasps the handle from the front, fingers above and below it, and pulls until the drawer is open by `until`.

    Ends early if the bar slips out of the fingers; the next attempt grasps deeper.
    """
    out = open_direction(scene, joint)
    bar = handle_of(scene, joint)
    rot = facing(-out, bar.pose.rot[:, int(np.argmax(bar.half))])
    depth = GRASP_DEPTH + 0.003 * (attempt % 3)
    grasp = bar.pose.pos - depth * out
    scene = yield from approach(scene, grasp, out, rot, gripper=narrow, height=APPROACH + depth, timeout=80)
    scene = yield from close_gripper(scene)
    for _ in range(90):  # pull along the joint's axis, correcting sideways, until far enough or lost
        grip_point = handle_of(scene, joint).pose.pos - depth * out
        rest = (until - openness(scene, joint)) * (joint.range[1] - joint.range[0])
        if rest < 0 or (scene.eef.pos - grip_point) @ out > SLIPPED:
            break
        scene = yield servo(scene, grip_point + min(LEAD, SLOW + rest) * out, rot, CLOSE)
    scene = yield from open_gripper(scene)
    scene = yield from move_by(scene, APPROACH / 2 * out, gripper=OPEN, timeout=15, tolerance=0.03)
    back = FOLD * horizontal(scene.world.base_pos - scene.eef.pos)  # a stretched elbow would get stuck at its limit
    return (yield from move_by(scene, RETREAT * UP + back, gripper=OPEN, timeout=15, tolerance=0.05))


def narrow(scene: SceneState) -> float:
    """Return the gripper command that closes the fingers halfway: they pass between the handles of two drawers."""
    return CLOSE if scene.gripper_gap > NARROW else STAY


def make_room(scene: SceneState, name: str, joint: Joint, attempt: int) -> Skill:
    """Open a drawer for an object; first set the object aside if the open drawer would block its grasp."""
    if find_grasp(opened(scene, joint, ROOMY + OVERSHOOT), name) is None:
        scene = yield from set_aside(scene, name, joint)
    return (yield from open_drawer(scene, joint, attempt, ROOMY))


def opened(scene: SceneState, joint: Joint, openness: float) -> SceneState:
    """Return the scene as it would be with a drawer open by `openness`."""
    body_pos = scene.body_pos.copy()
    body_pos[joint.body] += (joint_at(scene, joint, openness) - scene.joint(joint)) * scene.axis(joint)
    return replace(scene, body_pos=body_pos)


def set_aside(scene: SceneState, name: str, joint: Joint) -> Skill:
    """Pick up an object and put it down a little farther from the cabinet, on the nearest free part of the table."""
    out = open_direction(scene, joint)
    side, start = np.cross(UP, out), scene.pose(name).pos
    boxes, neighbours = boxes_of(scene, name), obstacles(scene, start, 0.3, exclude=(name, ""))
    shifts = [ahead * out + aside * side for ahead, aside in SHIFTS]
    free = [shift for shift in shifts if not overlap(boxes.moved(shift, GAP), neighbours).any()]
    target = (start + (free or shifts)[0])[:2]
    scene = yield from pick(scene, name)
    if holds(scene, name):
        scene = yield from place(scene, name, Placement(resting_pos(scene, name, target, ""), ""))
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


def fill_drawer(scene: SceneState, name: str, joint: Joint) -> Skill:
    """Picks an object up and lowers it into a drawer that is open, the hand parallel to the drawer's front."""
    scene = yield from pick(scene, name)
    if not holds(scene, name):
        return scene
    out = open_direction(scene, joint)
    rot = facing(-UP, out, scene.eef.rot)
    target = drawer_middle(scene, joint)
    parts = object_parts(scene, name)
    shift = handle_of(scene, joint).high(out) + CLEAR - low(parts, out)
    if shift > 0:  # move the object out from under the open drawer, so that it can be raised
        below = low(parts_of(scene, [joint.body]), UP)
        rise = np.clip(below - CLEAR - high(parts, UP), 0.0, MAX_RISE)
        scene = yield from carry(scene, name, scene.pose(name).pos + rise * UP, tolerance=0.01, timeout=20)
        scene = yield from carry(scene, name, scene.pose(name).pos + shift * out, tolerance=0.02)
    height = travel_height(scene, scene.eef.pos, target, reach_below(scene, name), carried=name)
    lift = max(0.0, height - scene.eef.pos[2])
    scene = yield from carry(scene, name, scene.pose(name).pos + lift * UP, tolerance=0.03)
    over = np.append(target[:2], scene.pose(name).pos[2])
    scene = yield from bring(scene, name, over, rot, tolerance=0.008)
    down = target + (DROP + scene.pose(name).pos[2] - (scene.eef.pos[2] - reach_below(scene, name))) * UP
    scene = yield from bring(scene, name, down, rot, tolerance=0.006, timeout=35, speed=0.7)
    scene = yield from open_gripper(scene)
    return (yield from move_by(scene, RETREAT * UP, gripper=OPEN, tolerance=0.03, timeout=25))


def drawer_middle(scene: SceneState, joint: Joint) -> np.ndarray:
    """Return the middle [3] of the accessible part of a drawer's floor: not under the cabinet or the handles above."""
    out = open_direction(scene, joint)
    plates = plates_of(scene, joint)
    floor = min(plates, key=lambda plate: plate.high(UP))
    farthest = high(plates, out) - 0.02
    front = low((p for p in plates if p.high(out) - p.low(out) < 0.02 and p.high(out) > farthest), out)
    back = high((box for box in other_parts(scene, joint) if box.high(UP) > floor.high(UP)), out)
    middle = floor.pose.pos + out * ((front + back) / 2 - floor.pose.pos @ out)
    return np.append(middle[:2], floor.high(UP))


def plates_of(scene: SceneState, joint: Joint) -> list[Box]:
    """Return the walls, front and floor of a drawer: its shapes that are longer than the handle's bar."""
    bar = handle_of(scene, joint)
    return [box for box in parts_of(scene, [joint.body]) if box.half.max() > 1.2 * bar.half.max()]


def bring(
    scene: SceneState, name: str, target: np.ndarray, rot: np.ndarray, tolerance: float, timeout=60, speed=1.0
) -> Skill:
    """Moves a held object so that its root body comes to `target` [3] while the hand turns to `rot`; ends early when it
    is dropped. The object turns with the hand."""
    grip = scene.eef.inverse_apply(scene.pose(name).pos)
    for _ in range(timeout):
        offset = scene.eef.inverse_apply(scene.pose(name).pos)
        turned = np.linalg.norm(scene.eef.rot - rot)
        arrived = np.linalg.norm(scene.pose(name).pos - target) < tolerance and turned < 0.15
        if arrived or np.linalg.norm(offset - grip) > LOST:
            break
        scene = yield servo(scene, target - rot @ offset, rot, CLOSE, speed)
    return scene
