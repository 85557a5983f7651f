"""A camera picture to the model's input size, as upstream's processor does it (Pillow, antialiased).

LIBERO's own path (rotation, JPEG, Lanczos3, centre crop) is the evaluator's: it sends what the model sees, and a
picture of the right size passes through here untouched.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from services.openvla.config import CheckpointError, Tower

_WAYS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def resize(image: np.ndarray, tower: Tower) -> np.ndarray:
    """Returns uint8 [S, S, 3] of uint8 [H, W, 3]; the aspect ratio is not kept ("resize-naive")."""
    size = (tower.image_size, tower.image_size)
    if image.shape[:2] == size:
        return image
    return np.asarray(Image.fromarray(image).resize(size, resample=way(tower)))


def way(tower: Tower) -> Image.Resampling:
    """Returns Pillow's filter. Raises CheckpointError for one that upstream's processor does not have."""
    if tower.interpolation not in _WAYS:
        raise CheckpointError(
            f"preprocessor_config.json asks for interpolation {tower.interpolation!r}; expected one of "
            f"{', '.join(_WAYS)}"
        )
    return _WAYS[tower.interpolation]
