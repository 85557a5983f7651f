"""Putting something into an open drawer."""

from __future__ import annotations

import numpy as np

from services.libero.oracle.hand import UP, facing
from services.libero.oracle.motion import CLOSE, OPEN, Skill, move_by, open_gripper, servo
from services.libero.oracle.parts import (
    Box,
    handle_of,
    high,
    low,
    object_parts,
    open_direction,
    other_parts,
    parts_of,
)
from services.libero.oracle.pick_place import LOST, carry, holds, pick, reach_below, travel_height
from services.libero.oracle.scene import Joint, SceneState

DROP = 0.012  # m above the drawer's floor where the object is released
MAX_RISE = 0.06
CLEAR = 0.02  # m between the open drawer and an object raised next to it
RETREAT = 0.12


def put_in_drawer(scene: SceneState, name: str, joint: Joint) -> Skill:
    """Picks an object up and lowers it into a drawer that is open, the hand parallel to the drawer's front."""
    scene = yield from pick(scene, name)
    if not holds(scene, name):
        return scene
    out = open_direction(scene, joint)
    rot = facing(-UP, out, scene.eef.rot)
    target = drawer_middle(scene, joint)
    scene = yield from _out_from_under(scene, name, joint)
    height = travel_height(scene, scene.eef.pos, target, reach_below(scene, name), carried=name)
    lift = max(0.0, height - scene.eef.pos[2])
    scene = yield from carry(scene, name, scene.pose(name).pos + lift * UP, tolerance=0.03)
    over = np.append(target[:2], scene.pose(name).pos[2])
    scene = yield from bring(scene, name, over, rot, tolerance=0.008)
    low = target + (DROP + scene.pose(name).pos[2] - (scene.eef.pos[2] - reach_below(scene, name))) * UP
    scene = yield from bring(scene, name, low, rot, tolerance=0.006, timeout=35, speed=0.7)
    scene = yield from open_gripper(scene)
    return (yield from move_by(scene, RETREAT * UP, gripper=OPEN, tolerance=0.03, timeout=25))


def _out_from_under(scene: SceneState, name: str, joint: Joint) -> Skill:
    """Move a held object out from under the open drawer, so that it can be raised."""
    out = open_direction(scene, joint)
    parts = object_parts(scene, name)
    shift = handle_of(scene, joint).high(out) + CLEAR - low(parts, out)
    if shift <= 0:
        return scene
    below = low(parts_of(scene, [joint.body]), UP)
    rise = np.clip(below - CLEAR - high(parts, UP), 0.0, MAX_RISE)
    scene = yield from carry(scene, name, scene.pose(name).pos + rise * UP, tolerance=0.01, timeout=20)
    return (yield from carry(scene, name, scene.pose(name).pos + shift * out, tolerance=0.02))


def drawer_middle(scene: SceneState, joint: Joint) -> np.ndarray:
    """Return the middle [3] of the accessible part of a drawer's floor: not under the cabinet or the handles above."""
    out = open_direction(scene, joint)
    plates = plates_of(scene, joint)
    floor = min(plates, key=lambda plate: plate.high(UP))
    front = low((plate for plate in plates if _is_front(plate, plates, out)), out)
    back = high((box for box in other_parts(scene, joint) if box.high(UP) > floor.high(UP)), out)
    middle = floor.pose.pos + out * ((front + back) / 2 - floor.pose.pos @ out)
    return np.append(middle[:2], floor.high(UP))


def plates_of(scene: SceneState, joint: Joint) -> list[Box]:
    """Return the walls, front and floor of a drawer: its shapes that are longer than the handle's bar."""
    bar = handle_of(scene, joint)
    return [box for box in parts_of(scene, [joint.body]) if box.half.max() > 1.2 * bar.half.max()]


def _is_front(plate: Box, plates: list[Box], out: np.ndarray) -> bool:
    """Whether a plate is (part of) the drawer's front: thin along `out` and farthest that way."""
    return plate.high(out) - plate.low(out) < 0.02 and plate.high(out) > high(plates, out) - 0.02


def bring(
    scene: SceneState,
    name: str,
    target: np.ndarray,
    rot: np.ndarray,
    *,
    tolerance: float = 0.008,
    speed: float = 1.0,
    timeout: int = 60,
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
