"""Target positions of carried objects. Pure geometry. Units: m."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from services.libero.oracle.scene import SceneState
from services.libero.oracle.shapes import boxes_of, obstacles, overlap

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

    Objects that share the region go to its sides instead of the middle, their narrow sides together.
    """
    site, pose = scene.world.sites[region], scene.site(region)
    parent = scene.world.regions[region].parent
    support = parent if parent in scene.world.objects else ""
    boxes, start = boxes_of(scene, name), scene.pose(name).pos
    half = np.abs(pose.rot @ site.size)[:2]
    neighbours = obstacles(scene, pose.pos, 0.3, exclude=(name, support, ""))
    anchors = np.zeros((1, 2))
    if sum(goal.args[-1] == region for goal in scene.world.goals) >= 2:
        low, high = boxes.bounds()
        narrow = np.eye(2)[np.argmin((high - low)[:2])]
        anchors = np.array([-SIDE * narrow, SIDE * narrow])
    anchors = pose.pos[:2] + anchors * half
    points = pose.pos[:2] + np.array([[0.0, 0.0], *([x, y] for x in GRID for y in GRID)]) * half
    away = np.linalg.norm(points[:, None] - anchors, axis=2).min(axis=1)
    for xy in (*anchors, *points[np.argsort(away, kind="stable")]):
        placement = Placement(resting_pos(scene, name, xy, support), support)
        if not overlap(boxes.moved(placement.pos - start, ELBOW_ROOM), neighbours).any():
            return placement
    return Placement(resting_pos(scene, name, anchors[0], support), support)


def resting_pos(scene: SceneState, name: str, xy: np.ndarray, support: str) -> np.ndarray:
    """Return the position of an object's root body [3] when it stands at `xy` on `support`, turned as it is now."""
    under, boxes, pos = boxes_of(scene, support), boxes_of(scene, name), scene.pose(name).pos
    start = np.append(xy, pos[2])
    low, high = boxes.moved(start - pos).bounds()
    reach = under.reach()
    below = np.all((under.pos - reach < high)[:, :2] & (under.pos + reach > low)[:, :2], axis=1)
    tops = (under.pos + reach)[:, 2]
    top, bottom = float(tops[below].max() if below.any() else tops.min()), under.bounds()[0][2]
    free = start[2] + top - low[2] + 0.001  # bottom above the highest top under the object
    for step in (0.005, 0.001):  # down until the shapes meet, coarsely and then finely
        lowest = max(free - (top - bottom), free - DEEPEST)
        while free > lowest and not overlap(boxes.moved(np.append(xy, free - step) - pos), under).any():
            free -= step
    return np.append(xy, free)
