"""Put an object on a slanted shelf, such as a wine rack, where it leans on the stopper."""

from __future__ import annotations

import numpy as np

from services.libero.oracle.hand import UP
from services.libero.oracle.motion import CLOSE, OPEN, Skill, hold, move_by, open_gripper
from services.libero.oracle.pick_place import carry, holds, pick, travel_height
from services.libero.oracle.scene import Goal, SceneState
from services.libero.oracle.shapes import bounds, boxes_of

SLANTED = 0.9  # a region whose normal is less upright than this is on a slope
UP_SLOPE = 0.035  # m from the region's plate to the object's origin: LIBERO allows 0 to 0.1
ABOVE = 0.06
PRESS = 0.01  # m that the hand aims below the target: contact ends the motion


def is_slanted(scene: SceneState, region: str) -> bool:
    """Return whether a goal region lies on a slope; its normal then points up the slope from the stopper."""
    return bool(scene.site(region).rot[2, 2] < SLANTED)


def put_on_incline(scene: SceneState, goal: Goal, attempt: int) -> Skill:
    """Serve On(object, slanted region): lower the object upright onto the shelf just above the stopper."""
    name, region = goal.args
    scene = yield from pick(scene, name)
    if not holds(scene, name):
        return scene
    target = resting_point(scene, region)
    below = scene.eef.pos[2] - bounds(boxes_of(scene, name))[0][2]
    height = max(travel_height(scene, scene.eef.pos, target, below, carried=name), target[2] + below + ABOVE)
    scene = yield from carry(scene, name, scene.pose(name).pos + (height - scene.eef.pos[2]) * UP, tolerance=0.03)
    scene = yield from carry(scene, name, np.append(target[:2], scene.pose(name).pos[2]), tolerance=0.012)
    scene = yield from carry(scene, name, target - PRESS * UP, tolerance=0.004, timeout=30, speed=0.6)
    scene = yield from hold(scene, 5, gripper=CLOSE)
    scene = yield from open_gripper(scene)
    return (yield from move_by(scene, ABOVE * UP, gripper=OPEN, tolerance=0.02))


def resting_point(scene: SceneState, region: str) -> np.ndarray:
    """Return the target position [3] of an object's origin: on the region's axis, a little up the slope."""
    site = scene.site(region)
    return site.pos + (scene.world.sites[region].size[2] + UP_SLOPE) * site.rot[:, 2]
