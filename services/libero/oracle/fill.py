"""Putting something into an open drawer."""

from __future__ import annotations

import numpy as np

from services.libero.oracle.hand import UP, facing
from services.libero.oracle.motion import CLOSE, OPEN, Skill, move_by, open_gripper, servo
from services.libero.oracle.parts import Box, boxes_of, handle_of, opening_direction
from services.libero.oracle.pick_place import LOST, carry, holds, pick, reach_below, travel_height
from services.libero.oracle.scene import Joint, Scene

DROP = 0.012  # m above the drawer's floor where the object is let go
MAX_RISE = 0.06
CLEAR = 0.02  # m kept from the open drawer while the object is raised beside it
RETREAT = 0.12


def put_in_drawer(scene: Scene, name: str, joint: Joint) -> Skill:
    """Picks an object up and lowers it into a drawer that is open, the hand parallel to the drawer's front."""
    scene = yield from pick(scene, name)
    if not holds(scene, name):
        return scene
    out = opening_direction(scene, joint)
    rot = facing(-UP, out, scene.eef.rot)
    spot = opening_middle(scene, joint)
    scene = yield from _out_from_under(scene, name, joint)
    height = travel_height(scene, scene.eef.pos, spot, reach_below(scene, name), carried=name)
    lift = max(0.0, height - scene.eef.pos[2])
    scene = yield from carry(scene, name, scene.pose(name).pos + lift * UP, tolerance=0.03)
    over = np.append(spot[:2], scene.pose(name).pos[2])
    scene = yield from bring(scene, name, over, rot, tolerance=0.008)
    low = spot + (DROP + scene.pose(name).pos[2] - (scene.eef.pos[2] - reach_below(scene, name))) * UP
    scene = yield from bring(scene, name, low, rot, tolerance=0.006, timeout=35, speed=0.7)
    scene = yield from open_gripper(scene)
    return (yield from move_by(scene, RETREAT * UP, gripper=OPEN, tolerance=0.03, timeout=25))


def _out_from_under(scene: Scene, name: str, joint: Joint) -> Skill:
    """Takes a held object out from under the open drawer, over what stands before it, so that it can be raised."""
    out = opening_direction(scene, joint)
    boxes = boxes_of(scene, scene.world.things[name].bodies)
    shift = handle_of(scene, joint).reach(out) + CLEAR + max(box.reach(-out) for box in boxes)
    if shift <= 0:
        return scene
    below = min(-box.reach(-UP) for box in boxes_of(scene, [joint.body]))
    rise = np.clip(below - CLEAR - max(box.reach(UP) for box in boxes), 0.0, MAX_RISE)
    scene = yield from carry(scene, name, scene.pose(name).pos + rise * UP, tolerance=0.01, timeout=20)
    return (yield from carry(scene, name, scene.pose(name).pos + shift * out, tolerance=0.02))


def opening_middle(scene: Scene, joint: Joint) -> np.ndarray:
    """Returns the middle [3] of a drawer's floor as far as nothing hangs over it: out from under the cabinet and the
    handles above."""
    out = opening_direction(scene, joint)
    drawer, others = inside_of(scene, joint)
    front = min(-box.reach(-out) for box in drawer if _is_front(box, drawer, out))
    floor = min(drawer, key=lambda box: box.reach(UP))
    back = max(box.reach(out) for box in others if box.reach(UP) > floor.reach(UP))
    middle = floor.pose.pos + out * ((front + back) / 2 - floor.pose.pos @ out)
    return np.append(middle[:2], floor.reach(UP))


def inside_of(scene: Scene, joint: Joint) -> tuple[list[Box], list[Box]]:
    """Returns the shapes of a drawer without its handle, and all others of its cabinet."""
    handle = handle_of(scene, joint)
    plates = [box for box in boxes_of(scene, [joint.body]) if box.half.max() > handle.half.max() * 1.2]
    owner = scene.world.things[scene.world.owner[joint.body]]
    return plates, boxes_of(scene, [body for body in owner.bodies if body != joint.body])


def _is_front(box: Box, plates: list[Box], out: np.ndarray) -> bool:
    """Whether a plate is (part of) the drawer's front: thin along `out` and farthest that way."""
    thickness = box.reach(out) + box.reach(-out)
    return thickness < 0.02 and box.reach(out) > max(plate.reach(out) for plate in plates) - 0.02


def bring(
    scene: Scene,
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
        held = scene.eef.inverse_apply(scene.pose(name).pos)
        turned = np.linalg.norm(scene.eef.rot - rot)
        arrived = np.linalg.norm(scene.pose(name).pos - target) < tolerance and turned < 0.15
        if arrived or np.linalg.norm(held - grip) > LOST:
            break
        scene = yield servo(scene, target - rot @ held, rot, CLOSE, speed)
    return scene
