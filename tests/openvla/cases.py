"""What upstream's code and ours are both asked: pictures and instructions, the same on every machine."""

import numpy as np

INSTRUCTIONS = (
    "put the bowl on the stove",
    "open the middle drawer of the cabinet",
    "Turn on the stove and put the moka pot on it",
    "push the plate to the front of the stove",
    "pick up the alphabet soup and place it in the basket",
    "pick up the black bowl between the plate and the ramekin and place it on the plate, carefully",
    "go",
    "fasse die Tasse: nicht die weiße!",
)
SIDES = (64, 224, 256, 64, 100, 64, 64, 33)  # pixels: some are resized on the way
COLUMNS = np.r_[0:32064:120, 31744:32064:4]  # of the scores, to keep the stored ones small


def pictures() -> list[np.ndarray]:
    """Returns eight pictures uint8 [S, S, 3]: black, white, then noise over a ramp."""
    draw = np.random.RandomState(7)
    found = []
    for index, side in enumerate(SIDES):
        ramp = np.linspace(0, 255, side)[:, None, None] * np.array([1.0, 0.5, 0.2])
        noise = draw.randint(0, 256, (side, side, 3))
        image = 0.5 * ramp + 0.5 * noise if index > 1 else np.full((side, side, 3), 255.0 * index)
        found.append(image.astype(np.uint8))
    return found


def wrist_pictures() -> list[np.ndarray]:
    """Returns eight pictures of another camera, of the same sizes."""
    return [255 - np.rot90(image).copy() for image in pictures()]


def states() -> np.ndarray:
    """Returns eight states of LIBERO float64 [8, 8]; some numbers are outside of the statistics' range."""
    low = np.array([-0.5, -0.4, 0.8, 2.2, -1.2, -0.5, -0.01, -0.05])
    high = np.array([0.2, 0.4, 1.4, 3.8, 1.2, 0.5, 0.05, 0.01])
    return low + (high - low) * np.random.RandomState(11).random_sample((8, 8))
