"""Hand rotations that do not point straight down: for fronts, handles and pushing. Pure functions.

A rotation is [3, 3]; its columns are the closing axis, the axis across it, and the direction that the fingers point.
"""

from __future__ import annotations

import numpy as np

from services.libero.oracle.motion import orientation

UP = np.array([0.0, 0.0, 1.0])
NEUTRAL = orientation(0.4)  # keeps the last wrist joint closer to the middle of its range than the start pose


def facing(approach: np.ndarray, along: np.ndarray, reference: np.ndarray = NEUTRAL) -> np.ndarray:
    """Return the hand rotation whose fingers point along `approach` and close across the direction `along`.

    Of the two such rotations, half a turn apart, the one closer to `reference` is returned. The default keeps the wrist
    away from its limits; during a motion, pass the current rotation so that the hand does not flip.
    """
    closing = np.cross(along, approach)
    closing /= np.linalg.norm(closing)
    first, second = _hand(closing, approach), _hand(-closing, approach)
    return first if np.trace(reference.T @ first) >= np.trace(reference.T @ second) else second


def leaning(away: np.ndarray, lean: float, reference: np.ndarray = NEUTRAL) -> np.ndarray:
    """Return the hand rotation for pushing along the level unit vector `away` [3], fingers side by side across it.

    The fingers point down and lean back by `lean` > 0 rad, like a rake, or forward for `lean` < 0.
    """
    return facing(-np.cos(lean) * UP - np.sin(lean) * away, np.cos(lean) * away - np.sin(lean) * UP, reference)


def axis_rotation(axis: np.ndarray, angle: float) -> np.ndarray:
    """Return the rotation by `angle` rad about the unit vector `axis` [3]."""
    x, y, z = axis
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


def horizontal(vector: np.ndarray) -> np.ndarray:
    """Return the unit vector [3] of the horizontal part of a direction [2] or [3]."""
    flat = np.array([vector[0], vector[1], 0.0])
    return flat / max(np.linalg.norm(flat), 1e-9)


def _hand(closing: np.ndarray, approach: np.ndarray) -> np.ndarray:
    return np.stack([closing, np.cross(approach, closing), approach], axis=1)
