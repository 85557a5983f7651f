"""Resize a camera image to the model's input size, as upstream's processor does (Pillow, antialiased).

LIBERO's own path (rotation, JPEG, Lanczos3, centre crop) is the evaluator's: it sends what the model sees, and a
image of the right size is not changed here.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from services.openvla.checkpoint.config import Tower


def resize(image: np.ndarray, tower: Tower) -> np.ndarray:
    """Return uint8 [S, S, 3] of uint8 [H, W, 3]; the aspect ratio is not kept ("resize-naive")."""
    size = (tower.image_size, tower.image_size)
    if image.shape[:2] == size:
        return image
    return np.asarray(Image.fromarray(image).resize(size, resample=Image.Resampling[tower.interpolation.upper()]))
