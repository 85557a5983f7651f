"""Convert the images of `/act` clients to RGB, in numpy, with the bits of `Image.fromarray(image).convert("RGB")`.

That is what upstream's service does (openvla, vla-scripts/deploy.py, with Pillow). Where Pillow clips or wraps numbers
that are no pixels, they are refused here: it would make a black image of 0.0 to 1.0 without a word.
"""

import numpy as np

from vla_contract.protocol.errors import InvalidObservation

GREY = frozenset(map(np.dtype, ("|b1", "|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<f4", "<f8")))  # Pillow takes these


def to_rgb(image: object) -> object:
    """Return uint8 [H, W, 3] of grey [H, W] with values from 0 to 255, grey and alpha [H, W, 2], or RGBA [H, W, 4].

    Alpha is dropped, True is white, fractions are cut off. Anything else comes back as it is, for `Observation` to
    judge. Raises InvalidObservation for a grey image with other values.
    """
    if not isinstance(image, np.ndarray):
        return image
    if image.ndim == 2 and image.dtype in GREY:
        return _threefold(_levels(image))
    if image.ndim == 3 and image.dtype == np.uint8 and image.shape[2] == 2:
        return _threefold(image[:, :, 0])
    if image.ndim == 3 and image.dtype == np.uint8 and image.shape[2] == 4:
        return np.ascontiguousarray(image[:, :, :3])
    return image


def _threefold(grey: np.ndarray) -> np.ndarray:
    return np.repeat(grey[:, :, None], 3, axis=2)


def _levels(grey: np.ndarray) -> np.ndarray:
    """Return uint8 [H, W]."""
    if grey.dtype == bool:
        return grey.astype(np.uint8) * np.uint8(255)
    if grey.dtype != np.uint8 and grey.size:
        low, high = grey.min(), grey.max()
        is_share = grey.dtype.kind == "f" and 0 < high <= 1
        if is_share or not (low >= 0 and high <= 255):  # NaN is neither
            raise InvalidObservation(
                f"image is a grey image, {grey.dtype} from {low} to {high}; expected values from 0 to 255"
            )
    return grey.astype(np.float32).astype(np.uint8) if grey.dtype.kind == "f" else grey.astype(np.uint8)
