"""Pick up an object and place it on or in another: the skills for the goals "on" and "in"."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from services.libero.oracle.grasp import PALM, Grasp, find_grasp
from services.libero.oracle.motion import (
    CLOSE,
    OPEN,
    Skill,
    approach,
    close_gripper,
    funnel,
    hold,
    move_by,
    move_to,
    open_gripper,
    orientation,
    servo,
    within_reach,
)
from services.libero.oracle.placements import Placement
from services.libero.oracle.scene import UP, SceneState
from services.libero.oracle.shapes import boxes_of, obstacles

TRIES = 3  # grasps to try before the plan may switch to another goal
HOVER = 0.06  # m above the grasp where the hand starts to descend
RISEN = 0.005  # m that an object must have risen with the hand; it may hang askew
LIFT_SPEED = 0.5  # of the full speed: an object held by its rim slips out at a jerk
LIFT = 0.05  # m of the first lift, after which the grasp is checked
CLEARANCE = 0.03  # m between a carried object and what it passes over
PATH_STEP = 0.03  # m between the checked points of a path
FINGERS_ASIDE, PALM_ASIDE = 0.07, 0.12  # m on all sides of the grip site that fingers (with a load) and palm need
SLOWDOWN_HEIGHT = 0.04  # m above its resting position where lowering an object slows down
DROP_HEIGHT = 0.004  # m above its resting position where an object is released
LOST = 0.05  # m that an object may shift in the hand before it counts as dropped
PAUSE = 10  # steps to wait if there is no grasp: objects may still be moving,
MOVED = 0.002  # m; before that there is no other grasp to be found
STANDSTILL, PATIENCE = 0.01, 6  # m/s and steps: a hand slower than that for longer is stuck
FALL_STEPS = 10  # for a dropped object to come to rest
SLANTED = 0.9  # a region whose normal is less upright than this is on a slope
UP_SLOPE = 0.035  # m from a slope's plate to the object's origin: LIBERO allows 0 to 0.1
PRESS = 0.01  # m that the hand aims below the target on a slope: contact ends the motion


def pick(scene: SceneState, name: str, placement: Placement | None = None) -> Skill:
    """Grasp an object and lift it a little, with up to three attempts; check the result with `holds`.

    Grasps with which the hand fits at the `placement` are preferred, and none that failed before in this episode is
    used; if all have failed, they are forgotten.
    """
    failed: list[Grasp] = scene.world.cache.setdefault(("failed grasps", name), [])
    things = np.array([scene.pose(other).pos for other in scene.world.objects])  # [objects, 3]
    blocked = scene.world.cache.get(("no grasp", name))
    if blocked is not None and np.abs(things - blocked).max() < MOVED:
        return (yield from hold(scene, PAUSE, gripper=OPEN))
    for _ in range(TRIES):
        grasp = find_grasp(scene, name, failed, placement)
        if grasp is None:
            if not failed:
                scene.world.cache["no grasp", name] = things
            failed.clear()
            return (yield from hold(scene, PAUSE, gripper=OPEN))
        above = grasp.pos + HOVER * UP
        height = max(above[2], travel_height(scene, scene.eef.pos, above, 0.0))
        rises = height > scene.eef.pos[2]
        corner = np.append(scene.eef.pos[:2], height) if rises else np.append(above[:2], scene.eef.pos[2])
        for point in (corner, np.append(above[:2], height)):
            point = within_reach(point, scene.world.base_pos)
            passing = {"tolerance": 0.03, "angle_tolerance": 0.5}
            scene = yield from move_to(scene, point, gripper=OPEN, yaw=grasp.yaw, **passing)
        rot = orientation(grasp.yaw)
        scene = yield from approach(scene, grasp.pos, UP, rot, gripper=OPEN, height=HOVER, tolerance=0.004)
        scene = yield from close_gripper(scene)
        before = scene.pose(name).pos[2]
        scene = yield from move_by(scene, LIFT * UP, gripper=CLOSE, tolerance=0.015, speed=LIFT_SPEED, timeout=16)
        if holds(scene, name) and scene.pose(name).pos[2] > before + RISEN:
            return scene
        failed.append(grasp)
        scene = yield from open_gripper(scene)
        scene = yield from move_by(scene, HOVER * UP, gripper=OPEN, tolerance=0.02)
    return scene


def holds(scene: SceneState, name: str) -> bool:
    """Return whether the object is between the fingers."""
    return scene.touching(name, "gripper") and scene.gripper_gap > 0.0015


def travel_height(
    scene: SceneState, start: np.ndarray, end: np.ndarray, below: float, carried: str | None = None
) -> float:
    """Return the lowest height (m) at which the hand passes over all obstacles between `start` and `end` [3].

    Both are of the grip site; fingers and load reach `below` m under it.
    """
    skipped = () if carried is None else (carried,)
    boxes = obstacles(scene, (start + end) / 2, float(np.abs(end - start)[:2].max() / 2 + 0.2), exclude=skipped)
    count = 2 + int(np.hypot(*(end - start)[:2]) / PATH_STEP)
    path = np.linspace(start[:2], end[:2], count)
    off = np.abs(boxes.pos[:, None, :2] - path) - boxes.reach()[:, None, :2]  # [boxes, points, 2]
    aside = off.max(axis=2).min(axis=1)
    tops = (boxes.pos + boxes.reach())[:, 2]
    over_fingers = tops[aside < FINGERS_ASIDE].max(initial=-np.inf) + below
    over_palm = tops[aside < PALM_ASIDE].max(initial=-np.inf) - PALM
    return float(max(over_fingers, over_palm) + CLEARANCE)


def carry(
    scene: SceneState, name: str, target: np.ndarray, *, tolerance: float = 0.008, speed: float = 1.0, timeout: int = 60
) -> Skill:
    """Move a held object until its root body is at `target` [3]; ends early if it is dropped or stuck."""
    rot = scene.eef.rot.copy()
    grip = scene.pose(name).pos - scene.eef.pos
    stuck = 0
    for _ in range(timeout):
        pos = scene.pose(name).pos
        dropped = np.linalg.norm(pos - scene.eef.pos - grip) > LOST
        stuck = 0 if np.linalg.norm(scene.eef_vel[:3]) > STANDSTILL else stuck + 1
        if dropped or stuck > PATIENCE or np.linalg.norm(target - pos) < tolerance:
            break
        aim = within_reach(scene.eef.pos + (target - pos), scene.world.base_pos)
        scene = yield servo(scene, aim, rot, CLOSE, speed)
    return scene


def carry_over(
    scene: SceneState, name: str, target: np.ndarray, height: float = -np.inf, tolerance: float = 0.012
) -> Skill:
    """Raise a held object until its path is clear (the hand at least to `height` m) and carry it over `target` [3]."""
    end = target + (scene.eef.pos - scene.pose(name).pos)
    height = max(height, travel_height(scene, scene.eef.pos, end, reach_below(scene, name), carried=name))
    lift = max(0.0, height - scene.eef.pos[2])
    scene = yield from carry(scene, name, scene.pose(name).pos + lift * UP, tolerance=0.03)
    return (yield from carry(scene, name, np.append(target[:2], scene.pose(name).pos[2]), tolerance=tolerance))


def reach_below(scene: SceneState, name: str) -> float:
    """Return the extent (m) of a held object below the grip site."""
    return float(scene.eef.pos[2] - boxes_of(scene, name).bounds()[0][2])


def place(scene: SceneState, name: str, placement: Placement) -> Skill:
    """Carry a held object over its placement, lower it onto its support, release it and move up."""
    scene = yield from carry_over(scene, name, placement.pos, tolerance=0.03)
    scene = yield from lower(scene, name, placement)
    scene = yield from open_gripper(scene)
    return (yield from move_by(scene, HOVER * UP, gripper=OPEN, tolerance=0.02))


def lower(scene: SceneState, name: str, placement: Placement, timeout: int = 60) -> Skill:
    """Lower an object along a funnel to its placement, until it touches the support or is just above its position."""
    rot = scene.eef.rot.copy()
    target = placement.pos + DROP_HEIGHT * UP
    for _ in range(timeout):
        error = target - scene.pose(name).pos
        aside = float(np.linalg.norm(error[:2]))
        is_close = aside < 0.015 and abs(error[2]) < 0.02
        arrived = np.linalg.norm(error) < 0.005 or (is_close and scene.touching(name, placement.support))
        if arrived or not holds(scene, name):
            break
        above = funnel(aside, SLOWDOWN_HEIGHT)
        speed = 0.6 if error[2] > -SLOWDOWN_HEIGHT else 1.0
        scene = yield servo(scene, scene.eef.pos + error + above * UP, rot, CLOSE, speed)
    return scene


def put(
    scene: SceneState, name: str, target: str, find_placement: Callable[[SceneState, str, str], Placement]
) -> Skill:
    """Pick an object up and place it; the placement is computed again once the object is held."""
    scene = yield from pick(scene, name, find_placement(scene, name, target))
    if holds(scene, name):
        scene = yield from place(scene, name, find_placement(scene, name, target))
    return scene


def drop_into(scene: SceneState, name: str, region: str) -> Skill:
    """Drop an object from just above the rim of a container that is open at the top."""
    scene = yield from pick(scene, name)
    if not holds(scene, name):
        return scene
    rim = boxes_of(scene, scene.world.regions[region].parent).bounds()[1][2]
    low, high = boxes_of(scene, name).bounds()
    middle = scene.site(region).pos + (scene.pose(name).pos - (low + high) / 2)
    scene = yield from carry_over(scene, name, middle, height=rim + reach_below(scene, name) + 0.01)
    scene = yield from open_gripper(scene)
    return (yield from hold(scene, FALL_STEPS, gripper=OPEN))


def is_slanted(scene: SceneState, region: str) -> bool:
    """Return whether a goal region lies on a slope, such as a wine rack; its normal points up from the stopper."""
    return bool(scene.site(region).rot[2, 2] < SLANTED)


def put_on_slope(scene: SceneState, name: str, region: str) -> Skill:
    """Lower an object upright onto a slanted shelf just above the stopper, on which it leans."""
    scene = yield from pick(scene, name)
    if not holds(scene, name):
        return scene
    site = scene.site(region)
    target = site.pos + (scene.world.sites[region].size[2] + UP_SLOPE) * site.rot[:, 2]
    below = reach_below(scene, name)
    height = max(travel_height(scene, scene.eef.pos, target, below, carried=name), target[2] + below + HOVER)
    scene = yield from carry(scene, name, scene.pose(name).pos + (height - scene.eef.pos[2]) * UP, tolerance=0.03)
    scene = yield from carry(scene, name, np.append(target[:2], scene.pose(name).pos[2]), tolerance=0.012)
    scene = yield from carry(scene, name, target - PRESS * UP, tolerance=0.004, timeout=30, speed=0.6)
    scene = yield from hold(scene, 5, gripper=CLOSE)
    scene = yield from open_gripper(scene)
    return (yield from move_by(scene, HOVER * UP, gripper=OPEN, tolerance=0.02))
