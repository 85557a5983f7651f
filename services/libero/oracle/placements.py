"""Target positions of carried objects. Pure geometry. Units: m."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from services.libero.oracle.scene import SceneState
from services.libero.oracle.shapes import Boxes, bounds, boxes_of, obstacles, overlap

UP = np.array([0.0, 0.0, 1.0])
GRID = np.linspace(-0.7, 0.7, 8)  # of a region's half extents: the candidate points
SIDE = 0.6  # of a region's half extents: position of objects that share it
DEEPEST = 0.2  # depth below its support's rim at which an object may rest
ELBOW_ROOM = 0.004  # margin around an object that is placed between others


class Placement(NamedTuple):
    """A target: `pos` [3] of the object's root body, and the `support` that it rests on ("" for the table)."""

    pos: np.ndarray
    support: str


def on_object(scene: SceneState, name: str, target: str) -> Placement:
    """Return the placement of `name` in the middle of another object (LIBERO: contact, higher, within 3 cm)."""
    return Placement(resting_pos(scene, name, scene.pose(target).pos[:2], target), target)


def in_region(scene: SceneState, name: str, region: str) -> Placement:
    """Return a free placement on a goal region: its middle, or the nearest point where the object hits nothing.

    If several objects go to the region, its sides are used instead of the middle.
    """
    site, pose = scene.world.sites[region], scene.site(region)
    parent = scene.world.regions[region].parent
    support = parent if parent in scene.world.objects else ""
    half = np.abs(pose.rot @ site.size)[:2]
    neighbours = obstacles(scene, pose.pos, 0.3, exclude=(name, support, ""))
    anchors = pose.pos[:2] + _anchors(scene, name, region) * half
    points = pose.pos[:2] + np.array([[0.0, 0.0], *([x, y] for x in GRID for y in GRID)]) * half
    away = np.linalg.norm(points[:, None] - anchors, axis=2).min(axis=1)
    for xy in (*anchors, *points[np.argsort(away, kind="stable")]):
        placement = Placement(resting_pos(scene, name, xy, support), support)
        if not overlap(_placed(scene, name, placement.pos, ELBOW_ROOM), neighbours).any():
            return placement
    return Placement(resting_pos(scene, name, anchors[0], support), support)


def _anchors(scene: SceneState, name: str, region: str) -> np.ndarray:
    """Return the points [k, 2] of a region to try first, in its half extents: the middle, or two sides for objects that
    share the region with their narrow sides together."""
    if sum(goal.args[-1] == region for goal in scene.world.goals) < 2:
        return np.zeros((1, 2))
    low, high = bounds(boxes_of(scene, name))
    narrow = np.eye(2)[np.argmin((high - low)[:2])]
    return np.array([-SIDE * narrow, SIDE * narrow])


def resting_pos(scene: SceneState, name: str, xy: np.ndarray, support: str) -> np.ndarray:
    """Return the position of an object's root body [3] when it stands at `xy` on `support`, turned as it is now."""
    under = boxes_of(scene, support)
    start = np.append(xy, scene.pose(name).pos[2])
    low, high = bounds(_placed(scene, name, start))
    top, bottom = top_under(under, low, high), bounds(under)[0][2]
    free = start[2] + top - low[2] + 0.001  # bottom above the highest top: free
    for step in (0.005, 0.001):  # down until the shapes meet, coarsely and then finely
        lowest = max(free - (top - bottom), free - DEEPEST)
        while free > lowest and not overlap(_placed(scene, name, np.append(xy, free - step)), under).any():
            free -= step
    return np.append(xy, free)


def top_under(boxes: Boxes, low: np.ndarray, high: np.ndarray) -> float:
    """Return the highest top of the boxes under the bounds `low`, `high` [3]; if there is none, the lowest top."""
    reach = boxes.reach()
    under = np.all((boxes.pos - reach < high)[:, :2] & (boxes.pos + reach > low)[:, :2], axis=1)
    tops = (boxes.pos + reach)[:, 2]
    return float(tops[under].max() if under.any() else tops.min())


def middle_of(scene: SceneState, name: str) -> np.ndarray:
    """Return the middle [3] of an object's bounds."""
    low, high = bounds(boxes_of(scene, name))
    return (low + high) / 2


def _placed(scene: SceneState, name: str, pos: np.ndarray, margin: float = 0.0) -> Boxes:
    """Return an object's boxes as they would lie with its root body at `pos`, wider by `margin`."""
    boxes = boxes_of(scene, name)
    return Boxes(boxes.pos + (pos - scene.pose(name).pos), boxes.rot, boxes.half + margin)
