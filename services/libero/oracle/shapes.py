"""Geometry of collision shapes: oriented boxes, exact overlap tests, solid points. Pure functions. Units: m."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from services.libero.oracle.scene import Geom, Pose, SceneState

FLOOR_THICKNESS = 0.5  # a plane becomes a box this thick below itself
POINT_SPACING = 0.004
MAX_POINTS = 2_000_000  # of one object; a frying pan has 30,000
LARGEST = 2.0  # m, of a graspable object


class Boxes(NamedTuple):
    """Oriented boxes: `pos` [n, 3] centres, `rot` [n, 3, 3], `half` [n, 3] half extents."""

    pos: np.ndarray
    rot: np.ndarray
    half: np.ndarray

    def select(self, keep: np.ndarray) -> Boxes:
        """Return the boxes selected by a mask or index array."""
        return Boxes(self.pos[keep], self.rot[keep], self.half[keep])

    def reach(self) -> np.ndarray:
        """Return half extents [n, 3] of the boxes' axis-aligned bounds."""
        return np.einsum("nij,nj->ni", np.abs(self.rot), self.half)

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the lowest and the highest corner [3] of the axis-aligned bounds of all boxes."""
        reach = self.reach()
        return (self.pos - reach).min(axis=0), (self.pos + reach).max(axis=0)

    def transformed(self, pose: Pose) -> Boxes:
        """Return the boxes transformed by a pose: local -> world."""
        return Boxes(pose.apply(self.pos), pose.rot @ self.rot, self.half)

    def moved(self, shift: np.ndarray, margin: float = 0.0) -> Boxes:
        """Return the boxes moved by `shift` [3] and wider by `margin` on all sides."""
        return Boxes(self.pos + shift, self.rot, self.half + margin)


def from_corners(*corners: tuple[Sequence[float], Sequence[float]]) -> Boxes:
    """Return level boxes, each from its lowest and its highest corner [3]."""
    low, high = np.array(corners, dtype=np.float64).transpose(1, 0, 2)
    return Boxes((low + high) / 2, np.tile(np.eye(3), (len(low), 1, 1)), (high - low) / 2)


def concatenate(parts: Iterable[Boxes]) -> Boxes:
    """Return all boxes of several sets as one set."""
    empty = Boxes(np.zeros((0, 3)), np.zeros((0, 3, 3)), np.zeros((0, 3)))
    return Boxes(*(np.concatenate(column) for column in zip(empty, *parts, strict=True)))


def boxes_of(scene: SceneState, name: str) -> Boxes:
    """Return the world boxes around the collision shapes of an object; "" is the room: table, floor, walls."""
    world, key = scene.world, ("boxes", name)
    if key not in world.cache:
        geoms = world.geoms_of(name) if name else [g for g in world.geoms if not world.owner[g.body]]
        world.cache[key] = [g.body for g in geoms], concatenate(box_around(g) for g in geoms)
    bodies, local = world.cache[key]
    pos, rot = scene.body_pos[bodies], scene.body_rot[bodies]
    return Boxes(np.einsum("nij,nj->ni", rot, local.pos) + pos, rot @ local.rot, local.half)


def obstacles(scene: SceneState, around: np.ndarray, radius: float, exclude: Iterable[str] = ()) -> Boxes:
    """Return the boxes of the room and all objects but `exclude` within `radius` of `around` [3], horizontally."""
    skipped = set(exclude)
    everything = concatenate(boxes_of(scene, name) for name in ("", *scene.world.objects) if name not in skipped)
    gap = np.abs(everything.pos - around) - everything.reach()
    return everything.select(np.all(gap[:, :2] < radius, axis=1))


def overlap(first: Boxes, second: Boxes) -> np.ndarray:
    """Return bool [n, m]: which boxes intersect. Exact: bounds first, then separating axes for the remaining pairs."""
    gap = np.abs(first.pos[:, None] - second.pos[None]) - first.reach()[:, None] - second.reach()[None]
    hits = np.all(gap <= 0, axis=-1)
    rows, columns = np.nonzero(hits)
    hits[rows, columns] = intersect(first.select(rows), second.select(columns))
    return hits


def intersect(first: Boxes, second: Boxes) -> np.ndarray:
    """Return bool [n]: which pairs of boxes, first with second, intersect (separating axis theorem, 15 axes)."""
    a, b = first.half, second.half
    shift = second.pos - first.pos
    turn = first.rot.transpose(0, 2, 1) @ second.rot  # axes of the second in the first's frame
    size = np.abs(turn) + 1e-9  # parallel edges have no axis between them
    ta = np.einsum("nki,nk->ni", first.rot, shift)
    tb = np.einsum("nki,nk->ni", second.rot, shift)
    apart = np.any(np.abs(ta) > a + np.einsum("nij,nj->ni", size, b), axis=1)
    apart |= np.any(np.abs(tb) > b + np.einsum("nij,ni->nj", size, a), axis=1)
    for i in range(3):
        i1, i2 = (i + 1) % 3, (i + 2) % 3
        for j in range(3):
            j1, j2 = (j + 1) % 3, (j + 2) % 3
            reach = a[:, i1] * size[:, i2, j] + a[:, i2] * size[:, i1, j]
            reach += b[:, j1] * size[:, i, j2] + b[:, j2] * size[:, i, j1]
            apart |= np.abs(ta[:, i2] * turn[:, i1, j] - ta[:, i1] * turn[:, i2, j]) > reach
    return ~apart


def solid_points(scene: SceneState, name: str) -> np.ndarray:
    """Return world points [n, 3] that fill the collision shapes of an object, about 4 mm apart.

    Raises ValueError if the object has no shapes, needs more than `MAX_POINTS` points or is larger than `LARGEST` in
    some direction.
    """
    key = ("points", name)
    if key not in scene.world.cache:
        geoms = scene.world.geoms_of(name)
        count = sum(float(np.prod(2 * np.abs(box_around(geom).half[0]) / POINT_SPACING + 2)) for geom in geoms)
        if not geoms or count > MAX_POINTS:
            raise ValueError(
                f"object {name!r} has {len(geoms)} shapes with {count:.0f} points; expected 1 to {MAX_POINTS} points"
            )
        parts = [_fill(geom) for geom in geoms]
        bodies = np.repeat([geom.body for geom in geoms], [len(part) for part in parts])
        scene.world.cache[key] = np.concatenate(parts), bodies
    points, bodies = scene.world.cache[key]
    placed = np.einsum("nij,nj->ni", scene.body_rot[bodies], points) + scene.body_pos[bodies]
    if (extent := float(np.ptp(placed, axis=0).max())) > LARGEST:
        raise ValueError(f"object {name!r} must be at most {LARGEST:g} m large to be grasped, got {extent:.1f} m")
    return placed


def box_around(geom: Geom) -> Boxes:
    """Return the box around one shape, in its body's frame."""
    size, pose = geom.size, geom.local
    if geom.type == "plane":
        half = np.array([size[0] or 10.0, size[1] or 10.0, FLOOR_THICKNESS / 2])
        pose = pose @ Pose(np.array([0, 0, -FLOOR_THICKNESS / 2]), np.eye(3))
    elif geom.type == "sphere":
        half = np.full(3, size[0])
    elif geom.type == "cylinder":
        half = np.array([size[0], size[0], size[1]])
    elif geom.type == "capsule":
        half = np.array([size[0], size[0], size[1] + size[0]])
    else:  # box, ellipsoid
        half = np.array(size)
    return Boxes(pose.pos[None], pose.rot[None], half[None])


def _fill(geom: Geom) -> np.ndarray:
    """Return points [n, 3] in one shape, its faces included, in its body's frame."""
    half = box_around(geom).half[0]
    axes = [np.linspace(-h, h, max(2, int(np.ceil(2 * h / POINT_SPACING)) + 1)) for h in half]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)
    if geom.type in ("sphere", "ellipsoid"):
        grid = grid[np.sum((grid / half) ** 2, axis=1) <= 1]
    elif geom.type in ("cylinder", "capsule"):
        grid = grid[np.sum((grid[:, :2] / half[:2]) ** 2, axis=1) <= 1]
    return geom.local.apply(grid)
