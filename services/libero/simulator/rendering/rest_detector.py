"""Detect objects at rest from the poses in a camera's images."""

import numpy as np

MIN_STILL_FRAMES = 2  # images with the same pose before an object counts as at rest


class RestDetector:
    """Tracks the `movable` geoms (bool [ngeom]) from image to image.

    When an object in a layer moves, the layer must be rendered again, which costs as much as an image. So an object
    that moves soon after coming to rest must stay still twice as long the next time.
    """

    def __init__(self, movable: np.ndarray):
        self._movable = movable
        self._poses = None
        self._still = np.zeros(len(movable), int)  # number of images without motion
        self._min_still = np.full(len(movable), MIN_STILL_FRAMES)
        self.at_rest = np.zeros(len(movable), bool)

    def update(self, poses: np.ndarray) -> np.ndarray:
        """Return the geoms at rest (bool [ngeom]): their `poses`, float32 [ngeom, 12], are bit-identical."""
        changed = np.ones(len(poses), bool) if self._poses is None else (poses != self._poses).any(axis=1)
        disturbed = self.at_rest & changed
        if disturbed.any():
            soon = self._still < 4 * self._min_still
            self._min_still[disturbed] = np.where(soon, 2 * self._min_still, MIN_STILL_FRAMES)[disturbed]
        self._still = np.where(changed, 0, self._still + 1)
        self.at_rest = self._movable & (self._still >= self._min_still)
        self._poses = poses
        return self.at_rest
