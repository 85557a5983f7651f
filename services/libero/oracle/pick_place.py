"""Picking an object up and putting it on or in something: the skills behind the goals "on" and "in"."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from services.libero.oracle.grasp import Grasp, differs, plan_grasps
from services.libero.oracle.motion import (
    CLOSE,
    OPEN,
    Skill,
    close_gripper,
    distance,
    follow,
    move_by,
    move_to,
    open_gripper,
    servo,
)
from services.libero.oracle.rules import Rule
from services.libero.oracle.scene import Goal, Scene
from services.libero.oracle.shapes import Boxes, bounds, boxes_of, obstacles, overlap

HOVER = 0.06  # m above the grasp where the hand stops coming across and starts coming down
LIFT = 0.05  # m of the first lift, after which the grasp is checked
CLEARANCE = 0.03  # m between a carried object and what it passes over
HAND_RADIUS = 0.07  # m around the straight way that must be passed over
DROP_HEIGHT = 0.004  # m above its resting place where an object is let go
LOST = 0.05  # m that an object may shift in the hand before it counts as dropped


class Spot(NamedTuple):
    """Where an object shall end: `pos` [3] for its root body, and what it will rest on ("" for the table)."""

    pos: np.ndarray
    support: str


def pick(scene: Scene, name: str, attempt: int = 0) -> Skill:
    """Grasps an object and lifts it a little; tries up to three grasps. Ask `holds` whether it worked."""
    for _ in range(3):
        grasp = choose_grasp(scene, name)
        if grasp is None:
            return scene
        scene = yield from grasp_at(scene, grasp)
        before = scene.pose(name).pos[2]
        scene = yield from move_by(scene, (0, 0, LIFT), gripper=CLOSE, tolerance=0.015, timeout=12)
        if holds(scene, name) and scene.pose(name).pos[2] > before + LIFT / 3:
            return scene
        failed_grasps(scene, name).append(grasp)
        scene = yield from open_gripper(scene)
        scene = yield from move_by(scene, (0, 0, HOVER), gripper=OPEN, tolerance=0.02)
    return scene


def choose_grasp(scene: Scene, name: str) -> Grasp | None:
    """Returns the best grasp that has not failed in this episode; with less and less room around the hand if need be."""
    for margin in (0.006, 0.003, 0.0):
        grasps = plan_grasps(scene, name, margin=margin)
        fresh = [g for g in grasps if all(differs(g, old) for old in failed_grasps(scene, name))]
        if fresh:
            return fresh[0]
    failed_grasps(scene, name).clear()
    return None


def failed_grasps(scene: Scene, name: str) -> list[Grasp]:
    """Returns the episode's list of grasps of an object that did not hold."""
    return scene.world.cache.setdefault(("failed grasps", name), [])


def grasp_at(scene: Scene, grasp: Grasp) -> Skill:
    """Comes over the grasp, then straight down, and closes."""
    above = grasp.pos + np.array([0, 0, HOVER])
    travel = np.append(above[:2], max(above[2], travel_height(scene, scene.eef.pos, above, 0.0)))
    scene = yield from follow(scene, rising_path(scene, travel) + [above], gripper=OPEN, yaw=grasp.yaw, tolerance=0.012)
    scene = yield from move_to(scene, grasp.pos, gripper=OPEN, yaw=grasp.yaw, tolerance=0.004, timeout=25)
    return (yield from close_gripper(scene))


def holds(scene: Scene, name: str) -> bool:
    """Returns whether the object is between the fingers."""
    return scene.touching(name, "gripper") and scene.gripper_gap > 0.0015


def rising_path(scene: Scene, end: np.ndarray) -> list[np.ndarray]:
    """Returns waypoints [3] from the hand to `end`: up first where `end` is higher, then across."""
    if end[2] <= scene.eef.pos[2]:
        return [np.append(end[:2], scene.eef.pos[2]), end]
    return [np.append(scene.eef.pos[:2], end[2]), end]


def travel_height(scene: Scene, start: np.ndarray, end: np.ndarray, below: float, carried: str | None = None) -> float:
    """Returns the lowest height of the hand, m, at which something reaching `below` m under the grip site passes over
    all that stands between `start` and `end`."""
    skipped = () if carried is None else (carried,)
    boxes = obstacles(scene, (start + end) / 2, float(np.abs(end - start)[:2].max() / 2 + 0.2), exclude=skipped)
    middle, way = boxes.pos[:, :2], (end - start)[:2]
    along = np.clip((middle - start[:2]) @ way / max(float(way @ way), 1e-9), 0, 1)
    off = np.abs(middle - (start[:2] + along[:, None] * way))
    in_way = np.all(off < boxes.reach()[:, :2] + HAND_RADIUS, axis=1)
    tops = (boxes.pos + boxes.reach())[in_way, 2]
    return float(tops.max(initial=-np.inf) + below + CLEARANCE)


def carry(scene: Scene, name: str, target: np.ndarray, **options) -> Skill:
    """Moves a held object so that its root body comes to `target` [3]; ends early when it is dropped."""
    rot = scene.eef.rot.copy()
    offset = scene.pose(name).pos - scene.eef.pos
    tolerance, timeout = options.get("tolerance", 0.008), options.get("timeout", 60)
    for _ in range(timeout):
        held = scene.pose(name).pos - scene.eef.pos
        error = target - scene.pose(name).pos
        if np.linalg.norm(error) < tolerance or np.linalg.norm(held - offset) > LOST:
            break
        scene = yield servo(scene, scene.eef.pos + error, rot, CLOSE, options.get("speed", 1.0))
    return scene


def place(scene: Scene, name: str, spot: Spot) -> Skill:
    """Carries a held object over its spot, lowers it until it touches its support, lets go and moves away upwards."""
    below = scene.eef.pos[2] - bounds(boxes_of(scene, name))[0][2]
    height = travel_height(scene, scene.eef.pos, spot.pos, below, carried=name)
    lift = max(0.0, height - scene.eef.pos[2])
    start = scene.pose(name).pos
    scene = yield from carry(scene, name, start + [0, 0, lift], tolerance=0.03)
    scene = yield from carry(scene, name, np.append(spot.pos[:2], scene.pose(name).pos[2]), tolerance=0.015)
    scene = yield from lower(scene, name, spot)
    scene = yield from open_gripper(scene)
    return (yield from move_by(scene, (0, 0, HOVER), gripper=OPEN, tolerance=0.02))


def lower(scene: Scene, name: str, spot: Spot, timeout: int = 40) -> Skill:
    """Lowers a held object to its spot until it touches the support or is `DROP_HEIGHT` above its resting place."""
    rot = scene.eef.rot.copy()
    target = spot.pos + [0, 0, DROP_HEIGHT]
    for _ in range(timeout):
        error = target - scene.pose(name).pos
        if scene.touching(name, spot.support) and np.linalg.norm(error[:2]) < 0.015 and abs(error[2]) < 0.02:
            break
        if np.linalg.norm(error) < 0.005 or not holds(scene, name):
            break
        scene = yield servo(scene, scene.eef.pos + error, rot, CLOSE, speed=0.6)
    return scene


def spot_on_object(scene: Scene, name: str, target: str) -> Spot:
    """Returns where `name` rests in the middle of another object (LIBERO: contact, higher, within 3 cm horizontally)."""
    middle = scene.pose(target).pos
    return Spot(resting_pos(scene, name, middle[:2], (target,)), target)


def resting_pos(scene: Scene, name: str, xy: np.ndarray, supports: tuple[str, ...]) -> np.ndarray:
    """Returns the position of an object's root body [3] when it stands at `xy`, as it is turned now, on its supports."""
    own = boxes_of(scene, name)
    shift = np.append(xy - scene.pose(name).pos[:2], 0.0)
    low, high = 0.0, 0.6
    base = Boxes(own.pos + shift, own.rot, own.half)
    floor = _stack(scene, supports)
    bottom = bounds(base)[0][2]
    start = floor_top(floor, bounds(base)) - bottom  # bottom face on the highest top: surely free
    low, high = start - 0.2, start + 0.001
    for _ in range(12):  # bisect the lowest free height
        middle = (low + high) / 2
        raised = Boxes(base.pos + [0, 0, middle], base.rot, base.half)
        low, high = (middle, high) if overlap(raised, floor).any() else (low, middle)
    return np.append(xy, scene.pose(name).pos[2] + high)


def floor_top(boxes: Boxes, region: tuple[np.ndarray, np.ndarray]) -> float:
    """Returns the highest top of the boxes that lie under a region's bounds; the lowest top of all where none does."""
    low, high = region
    reach = boxes.reach()
    under = np.all((boxes.pos - reach < high)[:, :2] & (boxes.pos + reach > low)[:, :2], axis=1)
    tops = (boxes.pos + reach)[:, 2]
    return float(tops[under].max() if under.any() else tops.min())


def _stack(scene: Scene, names: tuple[str, ...]) -> Boxes:
    return Boxes(*(np.concatenate(c) for c in zip(*(boxes_of(scene, n) for n in names), strict=True)))


def spot_in_region(scene: Scene, name: str, region: str) -> Spot:
    """Returns a free place on or in a goal region: its middle, or the nearest place where the object hits nothing."""
    site, pose = scene.world.sites[region], scene.site(region)
    parent = scene.world.regions[region].parent
    parent = parent if parent in scene.world.things else ""
    half = np.abs(pose.rot @ site.size)[:2]
    steps = np.linspace(-0.7, 0.7, 8)
    offsets = np.array([[0.0, 0.0]] + [[x, y] for x in steps for y in steps]) * half
    own = boxes_of(scene, name)
    others = obstacles(scene, pose.pos, 0.3, exclude=(name, parent, ""))
    for offset in offsets[np.argsort(np.linalg.norm(offsets, axis=1), kind="stable")]:
        pos = resting_pos(scene, name, pose.pos[:2] + offset, (parent,))
        moved = Boxes(own.pos + pos - scene.pose(name).pos, own.rot, own.half + 0.004)
        if not overlap(moved, others).any():
            return Spot(pos, parent)
    return Spot(resting_pos(scene, name, pose.pos[:2], (parent,)), parent)


def put_on_object(scene: Scene, goal: Goal, attempt: int) -> Skill:
    """Serves On(object, object)."""
    name, target = goal.args
    scene = yield from pick(scene, name, attempt)
    if holds(scene, name):
        scene = yield from place(scene, name, spot_on_object(scene, name, target))
    return scene


def put_on_region(scene: Scene, goal: Goal, attempt: int) -> Skill:
    """Serves On(object, region): a burner, the top of a cabinet, a part of the table."""
    name, region = goal.args
    scene = yield from pick(scene, name, attempt)
    if holds(scene, name):
        scene = yield from place(scene, name, spot_in_region(scene, name, region))
    return scene


def drop_into(scene: Scene, goal: Goal, attempt: int) -> Skill:
    """Serves In(object, region) of an open container: lets the object fall from just above the rim."""
    name, region = goal.args
    scene = yield from pick(scene, name, attempt)
    if not holds(scene, name):
        return scene
    middle = scene.site(region).pos
    container = scene.world.regions[region].parent
    rim = bounds(boxes_of(scene, container))[1][2]
    low, high = bounds(boxes_of(scene, name))
    below = scene.eef.pos[2] - low[2]
    height = max(travel_height(scene, scene.eef.pos, middle, below, carried=name), rim + below + 0.01)
    lift = max(0.0, height - scene.eef.pos[2])
    scene = yield from carry(scene, name, scene.pose(name).pos + [0, 0, lift], tolerance=0.03)
    over = np.append(middle[:2] + (scene.pose(name).pos - object_middle(scene, name))[:2], scene.pose(name).pos[2])
    scene = yield from carry(scene, name, over, tolerance=0.012)
    scene = yield from open_gripper(scene)
    for _ in range(10):
        scene = yield servo(scene, scene.eef.pos, scene.eef.rot, OPEN)
    return scene


def object_middle(scene: Scene, name: str) -> np.ndarray:
    """Returns the middle [3] of an object's bounds."""
    low, high = bounds(boxes_of(scene, name))
    return (low + high) / 2


def _is_region(scene: Scene, goal: Goal) -> bool:
    return goal.args[-1] in scene.world.regions


RULES: tuple[Rule, ...] = (
    Rule("put on object", lambda s, g: g.name == "on" and not _is_region(s, g), put_on_object),
    Rule("put on region", lambda s, g: g.name == "on" and _is_region(s, g), put_on_region),
    Rule("put into region", lambda s, g: g.name == "in" and _is_region(s, g), drop_into),
)
