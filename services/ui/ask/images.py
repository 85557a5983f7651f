"""Convert an uploaded file to a policy's input image."""

from __future__ import annotations

import os
import threading
import warnings
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps

from vla_contract.protocol.errors import InvalidObservation
from vla_contract.protocol.image_budget import ImageBudget, check_scans
from vla_evaluation.pictures import transforms

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MAX_FILE_BYTES = 20 * 2**20
MAX_PIXELS = 40_000_000  # of one image; 160 MB decoded
MAX_BYTES = 3 * MAX_PIXELS  # of all images of a query
BAND = 256  # rows converted at once
_DECODING = threading.Lock()  # one image in memory at a time
LONGEST_SIDE = 1024  # pixels sent to a policy that takes any size: 3 MB, well under the 16 MB of a request


class ImageError(ValueError):
    """The uploaded file cannot be used. The message says why and what to upload."""


def read(file: BinaryIO, left: ImageBudget | None = None) -> np.ndarray:
    """Return the image in an open file: uint8 [H, W, 3], RGB, rotated by EXIF, transparency on white.

    Raises ImageError if the file is not an image, is truncated, or exceeds MAX_PIXELS or the budget `left`.
    """
    size_mb, limit_mb = file.seek(0, os.SEEK_END) / 2**20, MAX_FILE_BYTES // 2**20
    file.seek(0)
    if size_mb > limit_mb:
        raise ImageError(f"the file has {size_mb:.1f} MB; upload at most {limit_mb} MB")
    limit = f"{MAX_PIXELS // 1_000_000} megapixels"
    try:
        check_scans(file.read())  # a JPEG of many scans takes more time than its pixels
        with _DECODING, warnings.catch_warnings(), Image.open(file, formats=FORMATS) as image:
            warnings.simplefilter("ignore")  # sizes are checked here
            if image.width * image.height > MAX_PIXELS:
                raise ImageError(f"the image is {image.width}×{image.height}; upload at most {limit}")
            (left or ImageBudget(1, MAX_BYTES)).spend(image.height, image.width)
            ImageOps.exif_transpose(image, in_place=True)
            return _rgb(image)
    except Image.DecompressionBombError as error:
        raise ImageError(f"the image has too many pixels; upload at most {limit}") from error
    except InvalidObservation as error:
        raise ImageError(str(error)) from error
    except ImageError:
        raise
    except (OSError, SyntaxError, TypeError, ValueError) as error:  # what Pillow raises for a broken file
        raise ImageError(f"the file is not a readable image; upload {', '.join(FORMATS)}") from error


def fit(image: np.ndarray, image_hw: tuple[int, int] | None, crop_area: float | None = None) -> np.ndarray:
    """Return the image in the size that a policy expects.

    With `image_hw`, exactly that (height, width): resized with Lanczos3 as OpenVLA does; with `crop_area`, the centre
    of that area is cropped and resized back. Without `image_hw`, reduced if a side exceeds LONGEST_SIDE.
    """
    shrink = min(1.0, LONGEST_SIDE / max(image.shape[:2]))
    height, width = image_hw or (max(1, round(side * shrink)) for side in image.shape[:2])
    if height == width:
        image = transforms.resize_lanczos3(image, height)
    elif image.shape[:2] != (height, width):
        image = np.array(Image.fromarray(image).resize((width, height), Image.Resampling.LANCZOS))
    return image if image_hw is None or crop_area is None else transforms.centre_crop(image, crop_area)


def _rgb(image: Image.Image) -> np.ndarray:
    """Return uint8 [H, W, 3], converted in bands of rows: full copies take five times the memory."""
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    for top in range(0, image.height, BAND):
        band = image.crop((0, top, image.width, min(top + BAND, image.height)))
        if image.has_transparency_data:
            band = Image.alpha_composite(Image.new("RGBA", band.size, "white"), band.convert("RGBA"))
        pixels[top : top + band.height] = band.convert("RGB")
    return pixels
