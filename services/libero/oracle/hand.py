"""Hand rotations for work that is not straight down: fronts, handles, things to push. Pure functions.

A rotation is [3, 3]; its columns are the closing axis, the axis across it, and the direction that the fingers point.
"""

from __future__ import annotations

import numpy as np

from services.libero.oracle.motion import orientation

UP = np.array([0.0, 0.0, 1.0])
NEUTRAL = orientation(0.4)  # the last wrist joint is nearer to the middle of its range than at the start


def facing(approach: np.ndarray, along: np.ndarray, near: np.ndarray = NEUTRAL) -> np.ndarray:
    """Returns the hand rotation whose fingers point along `approach` and close across the direction `along`.

    Of the two such rotations, half a turn apart, the one nearer to the rotation `near`: the default keeps the wrist
    off its limits; a hand that follows something gives its own rotation, so that it does not flip on the way.
    """
    closing = np.cross(along, approach)
    closing /= np.linalg.norm(closing)
    one, other = _hand(closing, approach), _hand(-closing, approach)
    return one if np.trace(near.T @ one) >= np.trace(near.T @ other) else other


def leaning(away: np.ndarray, lean: float, near: np.ndarray = NEUTRAL) -> np.ndarray:
    """Returns the hand rotation for work along the level unit vector `away` [3]: fingers side by side across it,
    pointing down and, for `lean` > 0 rad, back, as a rake does; for `lean` < 0 forward, as a finger at a button."""
    return facing(-np.cos(lean) * UP - np.sin(lean) * away, np.cos(lean) * away - np.sin(lean) * UP, near)


def rotation_about(axis: np.ndarray, angle: float) -> np.ndarray:
    """Returns the rotation by `angle` rad about the unit vector `axis` [3]."""
    x, y, z = axis
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


def horizontal(vector: np.ndarray) -> np.ndarray:
    """Returns the unit vector [3] of the horizontal part of a direction [2] or [3]."""
    flat = np.array([vector[0], vector[1], 0.0])
    return flat / max(np.linalg.norm(flat), 1e-9)


def _hand(closing: np.ndarray, approach: np.ndarray) -> np.ndarray:
    return np.stack([closing, np.cross(approach, closing), approach], axis=1)
