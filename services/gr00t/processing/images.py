"""Images as the network was trained to see them: the middle 95 %, at 224 × 224.

Source: Isaac-GR00T at 4af2b622, gr00t/data/transform/video.py in evaluation mode: crop, bilinear with antialiasing in
float32 of 0 to 1, then times 255, fractions cut off.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

CROP = 0.95  # of each side


def prepare(image: np.ndarray, side: int) -> np.ndarray:
    """Return uint8 [side, side, 3] for an image uint8 [H, W, 3]."""
    height, width = image.shape[:2]
    rows, columns = int(height * CROP), int(width * CROP)
    top, left = round((height - rows) / 2), round((width - columns) / 2)
    # The order in memory stays that of the image: torch then takes the same kernel as upstream, for equal bits.
    pixels = (torch.from_numpy(image.astype(np.float32)) / 255.0).permute(2, 0, 1)[None]
    cropped = pixels[..., top : top + rows, left : left + columns]
    resized = F.interpolate(cropped, (side, side), mode="bilinear", align_corners=False, antialias=True)
    return (resized[0].permute(1, 2, 0) * 255).to(torch.uint8).numpy()
