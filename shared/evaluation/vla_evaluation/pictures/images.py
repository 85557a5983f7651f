"""Prepare a rendered frame for a policy, as its profile defines."""

import numpy as np

from vla_evaluation.pictures import transforms
from vla_evaluation.profiles import EpisodeProtocol

RESIZE = {"lanczos3": transforms.resize_lanczos3, "bilinear-pad": transforms.resize_with_pad}


def prepare(image_hwc: np.ndarray, protocol: EpisodeProtocol) -> np.ndarray:
    """Return the image to send: uint8 [image_size, image_size, 3]; of size 0 as rendered.

    `image_hwc` is a frame as an environment renders it (bottom row first). The steps are the protocol's, in the order
    of the reference: turn, JPEG, resize, crop. Raises ValueError unless it is uint8 [H, W, 3].
    """
    image = transforms.check_image(image_hwc)
    if protocol.rotate_180:
        image = transforms.rotate_180(image)
    elif protocol.upright:
        image = upright(image)
    if protocol.jpeg_quality is not None:
        image = transforms.jpeg_round_trip(image, protocol.jpeg_quality)
    if protocol.image_size:
        image = RESIZE[protocol.resize](image, protocol.image_size)
    if protocol.crop_area is not None:
        image = transforms.centre_crop(image, protocol.crop_area)
    return image


def upright(image_hwc: np.ndarray) -> np.ndarray:
    """Return a rendered frame with its top row first, for videos."""
    return np.ascontiguousarray(image_hwc[::-1])
