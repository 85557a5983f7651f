"""Image augmentation of training: random crop and colours, as upstream's data loader does with TensorFlow.

Source: openvla's prismatic/vla/datasets/datasets.py (strengths), dlimp's augmentations.py (crop), and TensorFlow's
adjust_brightness, adjust_contrast, adjust_saturation and adjust_hue.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vla_evaluation.pictures.transforms import crop

AREA = 0.9  # of the image; serving crops as much from its centre
BRIGHTNESS, HUE = 0.2, 0.05  # largest change, of values in 0 … 1
FACTORS = (0.8, 1.2)  # of contrast and of saturation


@dataclass(frozen=True)
class Augmentation:
    """One image's change. The default is the crop that serving makes."""

    top: float = 0.5  # share of the cropped margin that is above the crop
    left: float = 0.5
    brightness: float = 0.0
    contrast: float = 1.0
    saturation: float = 1.0
    hue: float = 0.0  # share of the circle

    def apply(self, image: np.ndarray) -> np.ndarray:
        """Return uint8 [H, W, 3] of the same size."""
        pixels = crop(image, AREA, self.top, self.left)
        if self != Augmentation(self.top, self.left):
            pixels = np.clip(pixels + np.float32(self.brightness), 0, 1)
            mean = pixels.mean((0, 1), keepdims=True)
            pixels = change_colours((pixels - mean) * np.float32(self.contrast) + mean, self.saturation, self.hue)
        return (pixels * np.float32(255.5)).astype(np.uint8)


def draw(generator: np.random.Generator) -> Augmentation:
    """Return a random change."""
    top, left = generator.random(2)
    contrast, saturation = generator.uniform(*FACTORS, size=2)
    brightness, hue = generator.uniform(-BRIGHTNESS, BRIGHTNESS), generator.uniform(-HUE, HUE)
    return Augmentation(top, left, brightness, contrast, saturation, hue)


def change_colours(pixels: np.ndarray, saturation: float, hue: float) -> np.ndarray:
    """Return float32 [H, W, 3] in 0 … 1: clipped, saturation multiplied, hue turned by a share of the circle."""
    red, green, blue = channels = np.clip(pixels, 0, 1).transpose(2, 0, 1)
    value, least = channels.max(0), channels.min(0)
    spread = value - least
    divisor = np.where(spread > 0, spread, 1)
    angle = np.where(
        value == red,
        (green - blue) / divisor,
        np.where(value == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    angle = (angle + 6 * hue) % 6
    spread = value * np.clip(spread / np.where(value > 0, value, 1) * saturation, 0, 1)
    # each channel is `value` within 60° of its own hue, falls linearly over the next 60°, and is least beyond
    distances = [np.abs((angle - 2 * index + 3) % 6 - 3) for index in range(3)]
    shares = [np.clip(2 - distance, 0, 1) for distance in distances]
    return np.stack([value - spread * (1 - share) for share in shares], axis=2).astype(np.float32)
