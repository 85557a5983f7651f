"""Reach of the arm with a level hand. Pure functions. Units: m.

The Panda's elbow stops at its limit (joint 4 at -0.07 rad) when the wrist is 0.694 m from the shoulder. There the hand
tilts and may get stuck, so targets are kept closer.
"""

from __future__ import annotations

import numpy as np

# from the Panda's data sheet: shoulder over the base, wrist over the grip site, hand before the wrist
SHOULDER_HEIGHT, WRIST_HEIGHT, WRIST_TO_HAND = 0.333, 0.204, 0.088
FARTHEST = 0.69  # between shoulder and wrist
COMFORTABLE = 0.66  # up to here the hand moves as freely as anywhere


def stretch(pos: np.ndarray, base_pos: np.ndarray) -> float:
    """Return the distance from shoulder to wrist when a level hand has its grip site at `pos` [3]."""
    return float(np.hypot(_distance_out(pos, base_pos), _height(pos, base_pos)))


def within_reach(pos: np.ndarray, base_pos: np.ndarray) -> np.ndarray:
    """Return `pos` [3], pulled horizontally towards the base where it lies beyond `FARTHEST`."""
    if stretch(pos, base_pos) <= FARTHEST:
        return pos
    height = np.clip(_height(pos, base_pos), -0.95 * FARTHEST, 0.95 * FARTHEST)
    out = np.sqrt(FARTHEST**2 - height**2) + WRIST_TO_HAND
    away = (pos - base_pos)[:2]
    xy = base_pos[:2] + away * min(1.0, out / np.hypot(*away))
    return np.append(xy, height + base_pos[2] + SHOULDER_HEIGHT - WRIST_HEIGHT)


def _distance_out(pos: np.ndarray, base_pos: np.ndarray) -> float:
    return float(np.hypot(*(pos - base_pos)[:2]) - WRIST_TO_HAND)


def _height(pos: np.ndarray, base_pos: np.ndarray) -> float:
    return float(pos[2] + WRIST_HEIGHT - base_pos[2] - SHOULDER_HEIGHT)
