"""Where a carried object shall end. Pure geometry. Units: m."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from services.libero.oracle.scene import Scene
from services.libero.oracle.shapes import Boxes, bounds, boxes_of, obstacles, overlap

UP = np.array([0.0, 0.0, 1.0])
GRID = np.linspace(-0.7, 0.7, 8)  # of a region's half extents: the places looked at in it
SIDE = 0.6  # of a region's half extents: where things stand that share it
DEEPEST = 0.2  # how far below its support's rim an object may rest
ELBOW_ROOM = 0.004  # kept free around an object that is put between others


class Placement(NamedTuple):
    """Where an object shall end: `pos` [3] for its root body, and what it will rest on ("" for the table)."""

    pos: np.ndarray
    support: str


def on_object(scene: Scene, name: str, target: str) -> Placement:
    """Returns where `name` rests in the middle of another object (LIBERO: contact, higher, less than 3 cm aside)."""
    return Placement(resting_pos(scene, name, scene.pose(target).pos[:2], target), target)


def in_region(scene: Scene, name: str, region: str) -> Placement:
    """Returns a free place on a goal region: its middle, or the nearest to it where the object hits nothing. Where more
    than one object shall go to the region, one side of it takes the place of the middle."""
    site, pose = scene.world.sites[region], scene.site(region)
    parent = scene.world.regions[region].parent
    support = parent if parent in scene.world.objects else ""
    half = np.abs(pose.rot @ site.size)[:2]
    others = obstacles(scene, pose.pos, 0.3, exclude=(name, support, ""))
    anchors = pose.pos[:2] + _anchors(scene, name, region) * half
    places = pose.pos[:2] + np.array([[0.0, 0.0], *([x, y] for x in GRID for y in GRID)]) * half
    away = np.linalg.norm(places[:, None] - anchors, axis=2).min(axis=1)
    for xy in (*anchors, *places[np.argsort(away, kind="stable")]):
        placement = Placement(resting_pos(scene, name, xy, support), support)
        if not overlap(_placed(scene, name, placement.pos, ELBOW_ROOM), others).any():
            return placement
    return Placement(resting_pos(scene, name, anchors[0], support), support)


def _anchors(scene: Scene, name: str, region: str) -> np.ndarray:
    """Returns the places [k, 2] of a region to try first, in its half extents: the middle, or two sides next to which
    things stand with their narrow sides together."""
    if sum(goal.args[-1] == region for goal in scene.world.goals) < 2:
        return np.zeros((1, 2))
    low, high = bounds(boxes_of(scene, name))
    narrow = np.eye(2)[np.argmin((high - low)[:2])]
    return np.array([-SIDE * narrow, SIDE * narrow])


def resting_pos(scene: Scene, name: str, xy: np.ndarray, support: str) -> np.ndarray:
    """Returns the position of an object's root body [3] when it stands at `xy` on `support`, turned as it is now."""
    under = boxes_of(scene, support)
    start = np.append(xy, scene.pose(name).pos[2])
    low, high = bounds(_placed(scene, name, start))
    top, bottom = top_under(under, low, high), bounds(under)[0][2]
    free = start[2] + top - low[2] + 0.001  # bottom above the highest top: surely free
    for step in (0.005, 0.001):  # down until the shapes meet, then again more finely
        lowest = max(free - (top - bottom), free - DEEPEST)
        while free > lowest and not overlap(_placed(scene, name, np.append(xy, free - step)), under).any():
            free -= step
    return np.append(xy, free)


def top_under(boxes: Boxes, low: np.ndarray, high: np.ndarray) -> float:
    """Returns the highest top of the boxes below or in the bounds `low`, `high` [3]; where there is none, the lowest
    top of all."""
    reach = boxes.reach()
    under = np.all((boxes.pos - reach < high)[:, :2] & (boxes.pos + reach > low)[:, :2], axis=1)
    tops = (boxes.pos + reach)[:, 2]
    return float(tops[under].max() if under.any() else tops.min())


def middle_of(scene: Scene, name: str) -> np.ndarray:
    """Returns the middle [3] of an object's bounds."""
    low, high = bounds(boxes_of(scene, name))
    return (low + high) / 2


def _placed(scene: Scene, name: str, pos: np.ndarray, margin: float = 0.0) -> Boxes:
    """Returns an object's boxes as they would lie with its root body at `pos`, wider by `margin`."""
    own = boxes_of(scene, name)
    return Boxes(own.pos + (pos - scene.pose(name).pos), own.rot, own.half + margin)
