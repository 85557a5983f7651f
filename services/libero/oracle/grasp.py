"""Find top-down parallel-jaw grasps from an object's collision shapes. Pure functions. Units: m, rad.

For many yaws of the hand, the object is cut into slices as wide and high as the finger pads. Material in a slice that
fits between the open fingers, with room for a finger on both sides, is a candidate: the wall of a bowl, the width of a
box, a handle. Candidates whose approach from above would collide are dropped; the rest is ordered by cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from services.libero.oracle.motion import (
    COMFORTABLE,
    FARTHEST,
    FINGERTIP,
    closing_axis,
    nearest_yaw,
    orientation,
    stretch,
)
from services.libero.oracle.placements import Placement
from services.libero.oracle.scene import Pose, SceneState
from services.libero.oracle.shapes import Boxes, boxes_of, concatenate, from_corners, obstacles, overlap, solid_points

# Panda hand in the frame of its grip site (x: closing, z: out of the fingers), from robosuite 1.4.0's collision meshes.
PAD_GAP = 0.077  # between the open pads
PAD_HALF_WIDTH, PAD_HALF_HEIGHT = 0.008, 0.008
PAD_RISE = 0.004  # the pads' middle is this far above the grip site
PALM = 0.031  # from the grip site up to the palm: nothing taller than this above the grip fits between the fingers
HAND = from_corners(  # z reaches far up: the hand approaches from above
    ((0.038, -0.010, -0.300), (0.054, 0.010, FINGERTIP)),
    ((-0.054, -0.010, -0.300), (-0.038, 0.010, FINGERTIP)),
    ((-0.066, -0.011, -0.300), (0.066, 0.011, -PALM + 0.004)),
    ((-0.094, -0.016, -0.300), (0.094, 0.016, -PALM)),
    ((-0.101, -0.021, -0.300), (0.101, 0.021, -0.034)),
    ((-0.104, -0.032, -0.300), (0.104, 0.032, -0.050)),
)
FOREARM = from_corners(((-0.30, -0.06, 0.17), (0.06, 0.06, 0.40)))  # x: away from the base, z: up from the grip site
RAISED_FOREARM = from_corners(((-0.12, -0.06, 0.17), (0.06, 0.06, 0.40)))  # nothing lower than the wrist behind it
FINGER_ROOM = 0.003  # m on both sides of the material while the fingers come down
STRIP, STRIPS = 0.004, 4  # m, and how many make a pad's width
MAX_WEDGE = 0.007  # m that the thickness may vary across a pad; more would squeeze the object out
MAX_LEAN = 0.012  # m that its middle may shift across a pad; closing fingers straighten a smaller lean
TABLE_CLEARANCE = 0.006  # m between fingertips and what the object stands on
ASIDE = np.array([1.0, 1.0, 0.3])  # share of the margin per axis; less below the fingertips, which stop above the table
RAISED = np.array([0.0, 0.0, 0.06])  # m that the hand must be able to rise
# m around the hand that must be free, if possible, and where the forearm is: it often passes above furniture that it is
# supposed to touch, since it rises towards the elbow
MARGINS = ((0.006, FOREARM), (0.003, FOREARM), (0.0, FOREARM), (0.0, RAISED_FOREARM))
MAX_CHECKED = 400  # candidates whose approach is checked,
BATCH = 16  # so many at a time


# rad between the sampled yaws, m between the slices; fine only where coarse finds nothing
SAMPLINGS = ((np.pi / 9, 0.012), (np.pi / 18, 0.006))


@dataclass(frozen=True)
class Grasp:
    """A position of the grip site, a yaw of the level hand, and the material between the fingers."""

    pos: np.ndarray  # [3]
    yaw: float
    width: float  # of the material between the fingers
    cost: float
    local: np.ndarray  # [3] `pos` in the object's frame, to compare grasps after the object has moved


class Approach(NamedTuple):
    """A vertical approach of the hand: its `shift` [3] from the grasp, and the obstacles around it."""

    shift: np.ndarray
    blocked: Boxes


def find_grasp(
    scene: SceneState, name: str, avoid: Sequence[Grasp] = (), placement: Placement | None = None
) -> Grasp | None:
    """Return the best collision-free grasp of an object that differs from those in `avoid`; None if there is none.

    If possible, the hand also fits at the `placement`, and with a margin around it.
    """
    low, high = boxes_of(scene, name).bounds()
    around = obstacles(scene, (low + high) / 2, float(np.max(high - low) / 2 + 0.15))
    approaches = [Approach(np.zeros(3), around)]
    if placement is not None:
        around = obstacles(scene, placement.pos, 0.2, exclude=(name, placement.support))
        approaches.append(Approach(placement.pos - scene.pose(name).pos, around))
    for yaw_step, slice_step in SAMPLINGS:
        candidates = _candidates(scene, name, yaw_step, slice_step)
        candidates = [grasp for grasp in candidates if all(differs(grasp, other) for other in avoid)]
        candidates = sorted(candidates, key=lambda grasp: grasp.cost)[:MAX_CHECKED]
        for margin, forearm in MARGINS:
            for start in range(0, len(candidates), BATCH):
                batch = candidates[start : start + BATCH]
                free = np.all([free_approaches(scene, batch, each, margin, forearm) for each in approaches], axis=0)
                if free.any():
                    return batch[int(np.argmax(free))]
    return find_grasp(scene, name, avoid) if placement is not None else None


def free_approaches(
    scene: SceneState, grasps: Sequence[Grasp], approach: Approach, margin: float, forearm: Boxes
) -> np.ndarray:
    """Return bool [n]: for which grasps the open hand comes down without touching a box or stretching the arm."""
    positions = [g.pos + approach.shift for g in grasps]
    hands = concatenate(
        hand_boxes(scene, pos, g.yaw, margin, forearm) for g, pos in zip(grasps, positions, strict=True)
    )
    touches = overlap(hands, approach.blocked).any(axis=1).reshape(len(grasps), -1).any(axis=1)
    return ~touches & [stretch(pos, scene.world.base_pos) <= FARTHEST for pos in positions]


def hand_boxes(scene: SceneState, pos: np.ndarray, yaw: float, margin: float, forearm: Boxes = FOREARM) -> Boxes:
    """Return the boxes of the open hand at a grasp, extended upwards, and of the forearm above it."""
    away = pos[:2] - scene.world.base_pos[:2]
    x, y = away / np.linalg.norm(away)
    outwards = np.array([[x, -y, 0.0], [y, x, 0.0], [0.0, 0.0, 1.0]])
    hand = Boxes(HAND.pos, HAND.rot, HAND.half + margin * ASIDE).transformed(Pose(pos, orientation(yaw)))
    return concatenate((hand, forearm.transformed(Pose(pos, outwards))))


def differs(grasp: Grasp, other: Grasp) -> bool:
    """Return whether two grasps of an object differ enough to try both."""
    turned = abs(nearest_yaw(grasp.yaw - other.yaw))
    return bool(np.linalg.norm(grasp.local - other.local) > 0.015 or turned > np.pi / 6)


def _candidates(scene: SceneState, name: str, yaw_step: float, slice_step: float) -> Iterator[Grasp]:
    """Yield grasps from above, ignoring obstacles.

    The cost grows with the distance from the object's middle, slant, width, turn of the hand and stretch of the arm.
    Of a round object's many equal grasps it is always the same: a policy that learns from them would learn their mean.
    """
    points, pose, base = solid_points(scene, name), scene.pose(name), scene.world.base_pos
    centre, levels = points.mean(axis=0), heights(points[:, 2].min(), points[:, 2].max())
    azimuth = np.arctan2(*(centre - base)[1::-1])
    for yaw in yaws(boxes_of(scene, name), yaw_step):
        yaw = nearest_yaw(yaw, azimuth)
        for part in slices(points, yaw, slice_step):
            for pos, width, slant in _grips(part, levels):
                lever, height = np.hypot(*(pos - centre)[:2]), abs((pos - centre)[2])
                tight = max(0.0, width - 0.065)
                side = (pos - centre)[1]
                cost = lever + 0.5 * height + slant + 0.5 * width + 4 * tight + 0.01 * abs(yaw) + 0.4 * side
                strain = max(0.0, stretch(pos + RAISED, base) - COMFORTABLE)
                yield Grasp(pos, yaw, width, float(cost) + 2 * strain, pose.inverse_apply(pos))


def yaws(boxes: Boxes, step: float) -> np.ndarray:
    """Return the yaws [k] in [0, pi) to sample: along the sides of the object's biggest boxes, and evenly."""
    biggest = boxes.select(np.argsort(-boxes.half.prod(axis=1))[:4])
    level = np.abs(biggest.rot[:, 2, :]) < 0.2  # axes [n, 3] that lie flat
    axes = biggest.rot.transpose(0, 2, 1)[level]
    along = np.arctan2(-axes[:, 0], axes[:, 1]) % np.pi
    around = np.arange(0, np.pi, step)
    every = np.sort(np.concatenate([along, around]))
    return every[np.diff(every, prepend=-1.0) > 0.03]


class ObjectSlice(NamedTuple):
    """The points of an object within a finger pad's width: `u` [n] along the closing axis, `z` [n] up, and `strip` [n],
    the index of the strip of `STRIP` m across the pad."""

    u: np.ndarray
    z: np.ndarray
    strip: np.ndarray
    middle: float
    u_axis: np.ndarray
    v_axis: np.ndarray


def slices(points: np.ndarray, yaw: float, step: float) -> Iterator[ObjectSlice]:
    """Yield an object's slices across the closing axis of a hand with this yaw: its middle, and every `step` m."""
    u_axis, v_axis = closing_axis(yaw), np.array([np.cos(yaw), np.sin(yaw), 0.0])
    u, v, z = points @ u_axis, points @ v_axis, points[:, 2]
    centre, count = (v.min() + v.max()) / 2, int((v.max() - v.min() - PAD_HALF_WIDTH) / 2 / step)
    for middle in centre + step * np.arange(-count, count + 1):
        aside = v - middle + 1e-6  # so that rounding does not split a row of points between two strips
        inside = np.flatnonzero(np.abs(aside) < PAD_HALF_WIDTH)
        strip = np.floor(aside[inside] / STRIP).astype(int)
        yield ObjectSlice(u[inside], z[inside], strip, middle, u_axis, v_axis)


def _grips(part: ObjectSlice, levels: Sequence[float]) -> Iterator[tuple[np.ndarray, float, float]]:
    """Yield (position of the grip site [3], width of the material, slant of its sides) where the fingers fit."""
    for level in levels:
        pad = np.abs(part.z - level - PAD_RISE) < PAD_HALF_HEIGHT
        for left, right in spans(part.u[pad]):
            nearby = (part.u > left - 0.03) & (part.u < right + 0.03)
            too_wide = right - left > PAD_GAP - 2 * FINGER_ROOM
            if too_wide or part.z[nearby].max() > level + PALM - 0.002:  # the palm would sit on it
                continue
            gripped = pad & (part.u >= left) & (part.u <= right)
            wedge, lean = wedge_and_lean(part.u[gripped], part.strip[gripped])
            wedge = max(wedge, taper(part.u[gripped], part.z[gripped] - level))
            if wedge < MAX_WEDGE and lean < MAX_LEAN:
                pos = (left + right) / 2 * part.u_axis + part.middle * part.v_axis + level * np.array([0.0, 0.0, 1.0])
                yield pos, right - left, 3 * wedge + lean


def heights(bottom: float, top: float) -> list[float]:
    """Return heights of the grip site worth trying on an object between `bottom` and `top`, highest first."""
    lowest = max(bottom + FINGERTIP + TABLE_CLEARANCE, top - PALM + 0.002)
    highest = max(lowest, top - PAD_RISE - PAD_HALF_HEIGHT)
    return list(np.linspace(highest, lowest, 1 + int((highest - lowest) / 0.007)))


def spans(u: np.ndarray) -> list[tuple[float, float]]:
    """Return the intervals (from, to) covered by points on a line, split at gaps of more than 1 cm."""
    u = np.sort(u)
    parts = np.split(u, np.flatnonzero(np.diff(u) > 0.010) + 1)
    return [(float(part[0]), float(part[-1])) for part in parts if len(part)]


def wedge_and_lean(u: np.ndarray, strip: np.ndarray) -> tuple[float, float]:
    """Return the variation (m) of thickness and of middle over the strips of a pad; (0, 0) for faces square to it.

    `u` [n] is the coordinate along the closing axis, `strip` [n] the index of the strip.
    """
    ends = _ends(u, strip).values()
    thickness, middle = [high - low for low, high in ends], [(high + low) / 2 for low, high in ends]
    edge = 0.001 * (STRIPS - len(ends))  # an object that ends within the pad is harder to hold
    return max(thickness) - min(thickness) + edge, max(middle) - min(middle)


def taper(u: np.ndarray, z: np.ndarray) -> float:
    """Return how much thinner (m) the material is at its top than at its bottom; fingers slip off such a roof."""
    ends = _ends(u, np.floor(z / STRIP))
    (low, high), (top_low, top_high) = ends[min(ends)], ends[max(ends)]
    return max(0.0, (high - low) - (top_high - top_low))


def _ends(u: np.ndarray, part: np.ndarray) -> dict[float, tuple[float, float]]:
    """Return the lowest and the highest `u` [n] of the points in each part; `part` [n] numbers the parts."""
    groups = {key: u[part == key] for key in np.unique(part).tolist()}
    return {key: (float(group.min()), float(group.max())) for key, group in groups.items()}
