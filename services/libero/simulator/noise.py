"""LIBERO-plus's sensor noise: blur, motion and fog in a camera's image.

Five kinds in ten strengths, numbered 1 to 50, after ImageNet-C (arXiv:1903.12261) with LIBERO-plus's own strengths
(envs/env_wrapper.py). The original samples from numpy's global generator; here the caller passes one, which is used in
the same order. The arithmetic is the original's, so equal samples give equal images. Motion blur, done by ImageMagick
there, reimplements its `MotionBlurImage`.
"""

from __future__ import annotations

import numpy as np

CAMERA = "agentview"  # the only camera with noise
STRENGTHS = 10
MOTION = ((5, 2), (8, 3), (10, 4), (12, 5), (15, 6), (18, 8), (20, 10), (25, 12), (30, 15), (35, 20))  # radius, sigma
ZOOM = (  # first, end, step of the factors
    (1, 1.11, 0.01), (1, 1.16, 0.01), (1, 1.21, 0.02), (1, 1.26, 0.02), (1, 1.31, 0.03),
    (1, 1.36, 0.01), (1, 1.41, 0.01), (1, 1.46, 0.02), (1, 1.51, 0.02), (1, 1.56, 0.03),
)  # fmt: skip
FOG = (  # amount, decay of the clouds' detail
    (0.5, 3), (1.0, 2.8), (1.5, 2.5), (2.0, 2.2), (2.5, 2.0),
    (3.0, 1.8), (3.5, 1.6), (4.0, 1.5), (4.5, 1.4), (5.0, 1.3),
)  # fmt: skip
GLASS = (  # sigma, largest displacement of a pixel, rounds
    (0.5, 1, 3), (0.7, 1, 3), (0.9, 2, 3), (1.0, 2, 2), (1.1, 3, 2), (1.3, 3, 2), (1.5, 4, 2), (1.8, 4, 2), (2.2, 5, 1),
    (2.5, 5, 1),
)  # fmt: skip
PLASMA = 256  # side of the fog map; larger for larger images


def disturb(image_hwc: np.ndarray, number: int, rng: np.random.RandomState) -> np.ndarray:
    """Return an image, uint8 [H, H, 3], with noise `number`: 0 none, 1 to 50 in LIBERO-plus's numbering.

    Raises ValueError for another number.
    """
    if number == 0:
        return image_hwc
    if not 1 <= number <= STRENGTHS * len(KINDS):
        raise ValueError(f"noise {number} not found; LIBERO-plus has 1 to {STRENGTHS * len(KINDS)}, and 0 is none")
    kind, strength = divmod(number - 1, STRENGTHS)
    return KINDS[kind](image_hwc, strength, rng).astype(np.uint8)


def motion_blur(image_hwc: np.ndarray, strength: int, rng: np.random.RandomState) -> np.ndarray:
    """Return the image blurred by a camera motion in a direction sampled from ±45°.

    ImageMagick's arithmetic: half a Gaussian along the direction, edge padding, sums rounded to 16 bits and truncated
    to 8 as in a PNG.
    """
    radius, sigma = MOTION[strength]
    angle = np.radians(rng.uniform(-45, 45))
    width = 2 * int(np.ceil(radius)) + 1
    along = np.arange(width)
    kernel = np.exp(-(along * along) / (2.0 * sigma * sigma))
    kernel /= kernel.sum()
    reach = np.hypot(width * np.sin(angle), width * np.cos(angle))
    right = np.ceil(along * (width * np.cos(angle)) / reach - 0.5).astype(int)
    down = np.ceil(along * (width * np.sin(angle)) / reach - 0.5).astype(int)
    height, wide, _ = image_hwc.shape
    samples, blurred = image_hwc.astype(np.float64), np.zeros(image_hwc.shape)
    for weight, dx, dy in zip(kernel, right, down, strict=True):
        rows, columns = (np.clip(np.arange(n) + d, 0, n - 1) for n, d in ((height, dy), (wide, dx)))
        blurred += weight * samples[rows[:, None], columns]
    return np.floor(blurred * 257 + 0.5).astype(np.int64) // 257


def gaussian_blur(image_hwc: np.ndarray, strength: int, rng: np.random.RandomState) -> np.ndarray:
    """Return the image out of focus; not random."""
    return np.clip(_gaussian(image_hwc / 255.0, strength + 1), 0, 1) * 255


def zoom_blur(image_hwc: np.ndarray, strength: int, rng: np.random.RandomState) -> np.ndarray:
    """Return the mean of the image and of increasing enlargements of its middle; not random.

    Both sides of the middle use the image's height, as in the original.
    """
    from scipy.ndimage import zoom

    image, factors = (image_hwc / 255.0).astype(np.float32), np.arange(*ZOOM[strength])
    out, side = np.zeros_like(image), len(image)
    for factor in factors:
        cut = int(np.ceil(side / float(factor)))
        top = (side - cut) // 2
        large = zoom(image[top : top + cut, top : top + cut], (factor, factor, 1), order=1)
        trim = (large.shape[0] - side) // 2
        out += large[trim : trim + side, trim : trim + side]
    return np.clip((image + out) / (len(factors) + 1), 0, 1) * 255


def fog(image_hwc: np.ndarray, strength: int, rng: np.random.RandomState) -> np.ndarray:
    """Return the image in random fog."""
    amount, decay = FOG[strength]
    image = image_hwc / 255.0
    brightest, (height, width) = image.max(), image.shape[:2]
    side = max(PLASMA, 1 << (max(height, width) - 1).bit_length())
    image += amount * _plasma(side, decay, rng)[:height, :width][..., np.newaxis]
    return np.clip(image * brightest / (brightest + amount), 0, 1) * 255


def glass_blur(image_hwc: np.ndarray, strength: int, rng: np.random.RandomState) -> np.ndarray:
    """Return the image behind frosted glass: from the last pixel to the first, each becomes a random neighbour.

    The original intends to swap the two, but its arrays are views of each other.
    """
    sigma, far, rounds = GLASS[strength]
    image = np.uint8(_gaussian(image_hwc / 255.0, sigma) * 255)
    height, width = image.shape[:2]
    rows, columns = np.arange(height - far, far, -1), np.arange(width - far, far, -1)
    targets = (rows[:, None] * width + columns).ravel()
    came_from = list(range(height * width))
    for _ in range(rounds):
        dx, dy = rng.randint(-far, far, size=(len(targets), 2)).T
        for target, source in zip(targets.tolist(), (targets + dy * width + dx).tolist(), strict=True):
            came_from[target] = came_from[source]
    shuffled = image.reshape(-1, 3)[came_from].reshape(image.shape)
    return np.clip(_gaussian(shuffled / 255.0, sigma), 0, 1) * 255


KINDS = (motion_blur, gaussian_blur, zoom_blur, fog, glass_blur)  # in LIBERO-plus's order


def _gaussian(image: np.ndarray, sigma: float) -> np.ndarray:
    """Like skimage.filters.gaussian per channel, with edge padding."""
    from scipy.ndimage import gaussian_filter  # imported where used: workers start sooner, few use noise

    return gaussian_filter(image, (sigma, sigma, 0), mode="nearest", truncate=4.0)


def _plasma(side: int, decay: float, rng: np.random.RandomState) -> np.ndarray:
    """Return clouds by the diamond-square algorithm: float64 [side, side] from 0 to 1; `side` is a power of two."""
    clouds, step, wobble = np.empty((side, side)), side, 100.0
    clouds[0, 0] = 0

    def mean(total: np.ndarray) -> np.ndarray:
        return total / 4 + wobble * rng.uniform(-wobble, wobble, total.shape)

    while step >= 2:
        half = step // 2
        corners = clouds[::step, ::step]
        total = corners + np.roll(corners, -1, axis=0)
        total += np.roll(total, -1, axis=1)
        clouds[half::step, half::step] = mean(total)
        centres = clouds[half::step, half::step]
        adjacent, above = np.roll(centres, 1, axis=0), np.roll(corners, -1, axis=1)
        clouds[::step, half::step] = mean((centres + adjacent) + (corners + above))
        adjacent, above = np.roll(centres, 1, axis=1), np.roll(corners, -1, axis=0)
        clouds[half::step, ::step] = mean((centres + adjacent) + (corners + above))
        step //= 2
        wobble /= decay
    clouds -= clouds.min()
    return clouds / clouds.max()
