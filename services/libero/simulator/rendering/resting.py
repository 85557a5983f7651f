"""Which things stand still, told from the poses that a camera's pictures are drawn with."""

import numpy as np

PATIENCE = 2  # pictures in one pose before a thing counts as standing


class Resting:
    """Follows `movable` (bool [ngeom]) from picture to picture.

    What a layer holds must be drawn anew when it moves, at the price of a picture. So a thing that moved soon after it
    had come to rest has to stand still twice as long the next time.
    """

    def __init__(self, movable: np.ndarray):
        self._movable = movable
        self._poses = None
        self._still = np.zeros(len(movable), int)  # for how many pictures
        self._patience = np.full(len(movable), PATIENCE)
        self.held = np.zeros(len(movable), bool)

    def update(self, poses: np.ndarray) -> np.ndarray:
        """Returns which geoms (bool [ngeom]) stand still, their `poses` float32 [ngeom, 12] to the bit."""
        moved = np.ones(len(poses), bool) if self._poses is None else (poses != self._poses).any(axis=1)
        left = self.held & moved
        if left.any():
            soon = self._still < 4 * self._patience
            self._patience[left] = np.where(soon, 2 * self._patience, PATIENCE)[left]
        self._still = np.where(moved, 0, self._still + 1)
        self.held = self._movable & (self._still >= self._patience)
        self._poses = poses
        return self.held
