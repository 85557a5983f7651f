"""OpenVLA's image pipeline in numpy, level by level as the reference (TensorFlow) computes it; and openpi's resize.

Every step takes and returns uint8 [H, W, 3] (RGB, top row first) and is deterministic. The evaluator runs it before
sending, the web page for uploaded images. It imports nothing else of the evaluation; it needs only numpy,
`resize_with_pad` also Pillow, and `jpeg_round_trip` simplejpeg.
"""

import io
from functools import lru_cache

import numpy as np

_RADIUS = 3.0  # Lanczos3
_PI = np.float32(3.14159265359)


def check_image(image: np.ndarray) -> np.ndarray:
    """Return `image` itself. Raises ValueError unless it is uint8 [H, W, 3] with pixels in it."""
    image = np.asarray(image)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or image.size == 0:
        raise ValueError(f"image is {image.dtype} {list(image.shape)}; expected uint8 [H, W, 3]")
    return image


def rotate_180(image: np.ndarray) -> np.ndarray:
    """Return the image turned by 180°, for profiles whose training data was recorded so."""
    return np.ascontiguousarray(image[::-1, ::-1])


def jpeg_round_trip(image: np.ndarray, quality: int = 95) -> np.ndarray:
    """Return the image after JPEG, as training images were stored: 4:2:0, decoded with the fast integer DCT.

    Pillow's encoder and simplejpeg's fast decoder give TensorFlow's bits (`encode_jpeg`, `decode_image`).
    """
    from PIL import Image
    from simplejpeg import decode_jpeg

    encoded = io.BytesIO()
    Image.fromarray(image).save(encoded, format="JPEG", quality=quality, subsampling="4:2:0")
    return decode_jpeg(encoded.getbuffer(), colorspace="RGB", fastdct=True)


def _lanczos3(x: np.ndarray) -> np.ndarray:
    """Return the kernel at |x|, float32; TensorFlow takes 1 below 1e-3."""
    x = np.abs(x)
    safe = np.where(x <= np.float32(1e-3), np.float32(1), x)
    value = (
        np.float32(_RADIUS) * np.sin(_PI * safe) * np.sin(_PI * safe / np.float32(_RADIUS)) / (_PI * _PI * safe * safe)
    )
    return np.where(x > np.float32(_RADIUS), np.float32(0), np.where(x <= np.float32(1e-3), np.float32(1), value))


@lru_cache(maxsize=16)
def lanczos3_taps(size_in: int, size_out: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (first source index int [size_out], weights float32 [size_out, taps]) of an antialiased resize.

    Each row of weights sums to 1; taps beyond the image's edge have weight 0 (TensorFlow's ScaleAndTranslate).
    """
    inverse = np.float32(size_in / size_out)
    widen = max(inverse, np.float32(1))  # antialias: the kernel grows with the shrinking
    centre = (np.arange(size_out, dtype=np.float32) + np.float32(0.5)) * inverse
    first = np.ceil(centre - np.float32(_RADIUS) * widen - np.float32(0.5)).astype(np.int64).clip(0, size_in - 1)
    last = np.floor(centre + np.float32(_RADIUS) * widen - np.float32(0.5)).astype(np.int64).clip(0, size_in - 1)
    source = first[:, None] + np.arange(int((last - first).max()) + 1)
    offset = source.astype(np.float32) + np.float32(0.5) - centre[:, None]
    weights = np.where(source <= last[:, None], _lanczos3(offset * (np.float32(1) / widen)), np.float32(0))
    weights = weights / weights.sum(axis=1, keepdims=True, dtype=np.float32)
    return first, weights.astype(np.float32)


@lru_cache(maxsize=16)
def _lanczos3_blocks(size_in: int, size_out: int, block: int = 32) -> list[tuple[slice, slice, np.ndarray]]:
    """Return the resize as small matrices (rows out, rows in, float32 [out, in]): the whole matrix is mostly zeros."""
    first, weights = lanczos3_taps(size_in, size_out)
    taps = weights.shape[1]
    blocks = []
    for start in range(0, size_out, block):
        out = slice(start, min(start + block, size_out))
        low, high = int(first[out][0]), int(first[out][-1]) + taps
        matrix = np.zeros((out.stop - out.start, high - low), np.float32)
        np.put_along_axis(matrix, first[out, None] - low + np.arange(taps), weights[out], axis=1)
        high = min(high, size_in)
        blocks.append((out, slice(low, high), np.ascontiguousarray(matrix[:, : high - low])))
    return blocks


def _resize_rows(rows: np.ndarray, size: int) -> np.ndarray:
    """Return float32 [n, m] resized along its first axis to [size, m]."""
    resized = np.empty((size, rows.shape[1]), np.float32)
    for out, source, matrix in _lanczos3_blocks(rows.shape[0], size):
        np.matmul(matrix, rows[source], out=resized[out])
    return resized


def _swap_sides(rows: np.ndarray, height: int) -> np.ndarray:
    """Transpose an image from [height, width * 3] to [width, height * 3], or back."""
    return rows.reshape(height, -1, 3).transpose(1, 0, 2).reshape(-1, height * 3)


def resize_lanczos3(image: np.ndarray, size: int) -> np.ndarray:
    """Return the image at size × size, antialiased, rounded half to even.

    Rows first, then columns, in float32; TensorFlow's sums run in another order, so up to a few values in 150,528
    differ by one level.
    """
    height, width = image.shape[:2]
    if (height, width) == (size, size):
        return image
    rows = _resize_rows(image.reshape(height, width * 3).astype(np.float32), size)
    resized = _swap_sides(_resize_rows(_swap_sides(rows, size), size), size)
    np.rint(resized, out=resized)
    return resized.clip(0, 255, out=resized).astype(np.uint8).reshape(size, size, 3)


def resize_with_pad(image: np.ndarray, size: int) -> np.ndarray:
    """Return the image at size × size, its longer side filling one, the rest black: Pillow's antialiased bilinear.

    openpi@15a9616a packages/openpi-client/src/openpi_client/image_tools.py, whose sides are cut, not rounded.
    """
    from PIL import Image

    height, width = image.shape[:2]
    if (height, width) == (size, size):
        return image
    ratio = max(height, width) / size
    inner = Image.fromarray(image).resize((int(width / ratio), int(height / ratio)), Image.Resampling.BILINEAR)
    padded = Image.new("RGB", (size, size))
    padded.paste(inner, ((size - inner.width) // 2, (size - inner.height) // 2))
    return np.asarray(padded)


@lru_cache(maxsize=256)
def _crop_taps(size: int, area: float, offset: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (lower index, upper index, weight of the upper float32) of the crop along one side of `size` pixels.

    offset: the share of the margin that is before the crop.
    """
    side = np.sqrt(np.float32(area))
    start = (np.float32(1) - side) * np.float32(offset)
    scale = ((start + side) - start) * np.float32(size - 1) / np.float32(max(size - 1, 1))
    position = start * np.float32(size - 1) + np.arange(size, dtype=np.float32) * scale
    low = np.floor(position)
    return low.astype(np.int64), np.ceil(position).astype(np.int64).clip(0, size - 1), position - low


def crop(image: np.ndarray, area: float, top: float = 0.5, left: float = 0.5) -> np.ndarray:
    """Return a square part of the image, stretched back to its size: float32 [H, W, 3] in 0 … 1.

    Bilinear, corners aligned. top, left: the share of the cropped margin that is above and left of it.
    """
    height, width = image.shape[:2]
    pixels = image.reshape(height, width * 3) * np.float32(1 / 255)
    across = _interpolate(_swap_sides(pixels, height), _crop_taps(width, area, left))
    cropped = _interpolate(_swap_sides(across, width), _crop_taps(height, area, top))
    return cropped.clip(0, 1, out=cropped).reshape(height, width, 3)


def centre_crop(image: np.ndarray, area: float = 0.9) -> np.ndarray:
    """Return the middle `area` (0 to 1] of the image, stretched back to its size, uint8.

    Values are cut to the level below after `x * 255.5`, as TensorFlow's `convert_image_dtype` does.
    """
    if not 0 < area <= 1:
        raise ValueError(f"crop area {area} is outside (0, 1]")
    return (crop(image, area) * np.float32(255.5)).astype(np.uint8)


def _interpolate(rows: np.ndarray, taps: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
    """Return float32 [n, m] interpolated along its first axis."""
    low, high, weight = taps
    start, between = rows[low], rows[high]
    between -= start
    between *= weight[:, None]
    between += start
    return between
