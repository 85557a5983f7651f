"""From the file that somebody uploads to the picture that a policy takes."""

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

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
TILE_WIDTH, TILE_LENGTH = 322, 323  # of a TIFF
NOT_DRAWN = ("TIFF",)  # by Chrome and Firefox, which show a broken picture instead
MAX_FILE_BYTES = 20 * 2**20
MAX_PIXELS = 40_000_000  # of one picture, and of all pictures of a question; decoded, they take 160 MB
BAND = 256  # rows that are converted at once
_DECODING = threading.Lock()  # so that many questions take the memory of one picture
LONGEST_SIDE = 1024  # pixels sent to a policy that takes any size: 3 MB, well under the 16 MB of a request


class ImageError(ValueError):
    """The uploaded file cannot be used; the text says why and what to upload instead."""


def budget(count: int = 1) -> ImageBudget:
    """Return the limit on `count` images of one question together."""
    return ImageBudget(count, MAX_PIXELS * 3)


def read(file: BinaryIO, left: ImageBudget | None = None) -> np.ndarray:
    """Return the picture in an open file: uint8 [H, W, 3], RGB, upright as its EXIF says, transparency on white.

    Raises ImageError where the file is no picture, is cut off, or has more than MAX_PIXELS or than `left` allows.
    """
    try:
        _check_file(file)
        with _DECODING, warnings.catch_warnings(), Image.open(file, formats=FORMATS) as image:
            warnings.simplefilter("ignore")  # Pillow warns of sizes that are refused here anyway
            _check_size(image.size)
            (left or budget()).spend(image.height, image.width)
            _check_decoder(image, file)
            ImageOps.exif_transpose(image, in_place=True)
            return _rgb(image)
    except Image.DecompressionBombError as error:
        raise ImageError(f"the picture has far too many pixels; upload one of at most {_MEGAPIXELS}") from error
    except ImageError:
        raise
    except InvalidObservation as error:
        raise ImageError(str(error)) from error
    except (OSError, SyntaxError, TypeError, ValueError) as error:  # Pillow's ways to say: broken
        raise ImageError(f"the file cannot be read as a picture; upload {', '.join(FORMATS)}") from error


def drawable(file: BinaryIO | None) -> Image.Image | None:
    """Return the picture in a file as one that every browser draws, or None where the file is such a one.

    Raises ImageError as `read` does.
    """
    if file is None:
        return None
    pixels = read(file)
    with Image.open(file, formats=FORMATS) as image:
        return Image.fromarray(pixels) if image.format in NOT_DRAWN else None


def fit(image: np.ndarray, image_hw: tuple[int, int] | None, crop_area: float | None = None) -> np.ndarray:
    """Return the picture as a policy takes it.

    With `image_hw`, exactly that (height, width): stretched with Lanczos3 as OpenVLA does, then the middle `crop_area`
    of it cut out and stretched back, where one is given. Without, only made smaller where a side exceeds LONGEST_SIDE.
    """
    if image_hw is None:
        return _resized(image, _within(image.shape[:2]))
    fitted = _resized(image, image_hw)
    return fitted if crop_area is None else transforms.centre_crop(fitted, crop_area)


_MEGAPIXELS = f"{MAX_PIXELS // 1_000_000} megapixels"


def _check_file(file: BinaryIO) -> None:
    size_mb, limit_mb = file.seek(0, os.SEEK_END) / 2**20, MAX_FILE_BYTES // 2**20
    file.seek(0)
    if size_mb > limit_mb:
        raise ImageError(f"the file has {size_mb:.1f} MB; upload one of at most {limit_mb} MB")


def _check_size(size_wh: tuple[int, int]) -> None:
    width, height = size_wh
    if width * height > MAX_PIXELS:
        raise ImageError(f"the picture is {width}×{height}; upload one of at most {_MEGAPIXELS}")


def _check_decoder(image: Image.Image, file: BinaryIO) -> None:
    """Raises for a file whose decoding takes more than its pixels: scans of a JPEG, tiles of a TIFF."""
    if image.format in ("JPEG", "MPO"):
        before = file.tell()
        file.seek(0)
        check_scans(file.read())
        file.seek(before)
    if image.format == "TIFF":
        width, height = (int(image.tag_v2.get(tag, 0)) for tag in (TILE_WIDTH, TILE_LENGTH))
        _check_size((width, height))


def _rgb(image: Image.Image) -> np.ndarray:
    """Return uint8 [H, W, 3], converted in bands of rows: a whole copy for each step takes five times the memory."""
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    for top in range(0, image.height, BAND):
        band = image.crop((0, top, image.width, min(top + BAND, image.height)))
        if image.has_transparency_data:
            band = Image.alpha_composite(Image.new("RGBA", band.size, "white"), band.convert("RGBA"))
        pixels[top : top + band.height] = band.convert("RGB")
    return pixels


def _within(height_width: tuple[int, int]) -> tuple[int, int]:
    shrink = min(1.0, LONGEST_SIDE / max(height_width))
    return tuple(max(1, round(side * shrink)) for side in height_width)


def _resized(image: np.ndarray, height_width: tuple[int, int]) -> np.ndarray:
    height, width = height_width
    if image.shape[:2] == (height, width):
        return image
    if height == width:
        return transforms.resize_lanczos3(image, height)
    return np.array(Image.fromarray(image).resize((width, height), Image.Resampling.LANCZOS))
