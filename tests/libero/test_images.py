"""The picture pipeline against direct formulas in float64, and by its properties."""

import numpy as np
import pytest

from services.libero.profiles import PROFILES
from vla_evaluation.pictures import images, transforms

JPEG_RAMP = np.array([
    [0, 0, 0], [72, 1, 35], [150, 0, 74], [227, 3, 115],
    [3, 77, 40], [81, 81, 81], [157, 81, 119], [236, 86, 158],
    [2, 154, 79], [81, 159, 119], [157, 159, 156], [234, 163, 197],
    [10, 236, 124], [88, 240, 163], [165, 239, 202], [244, 244, 244],
])  # fmt: skip


def photo(height=256, width=256, seed=0):
    """A smooth picture with edges and noise, uint8 [height, width, 3]."""
    rng, (y, x) = np.random.RandomState(seed), np.mgrid[:height, :width]
    waves = [127 + 90 * np.sin(x / (9 + 7 * c) + y / (13 + 5 * c)) for c in range(3)]
    image = np.stack(waves, axis=-1) + rng.normal(0, 12, (height, width, 3))
    image[40:90, 60:140] = (250, 10, 30)
    return image.clip(0, 255).astype(np.uint8)


def lanczos3_exact(image, size):
    """The definition, one output at a time: weights L(offset / widening), normalised, in float64."""

    def along(values):
        count = values.shape[0]
        scale = count / size
        widen = max(scale, 1.0)
        result = np.empty((size, *values.shape[1:]))
        for out in range(size):
            centre = (out + 0.5) * scale
            taps = np.arange(count)
            x = np.abs(taps + 0.5 - centre) / widen
            weights = np.where(x < 3, np.sinc(x) * np.sinc(x / 3), 0.0)
            result[out] = np.tensordot(weights / weights.sum(), values, axes=1)
        return result

    rows = along(image.astype(np.float64))
    return along(rows.transpose(1, 0, 2)).transpose(1, 0, 2)


def crop_exact(image, area):
    """Bilinear sampling of the centred square of that area, corners on corners, in float64."""
    height, width = image.shape[:2]
    side = np.sqrt(area)
    start = (1 - side) / 2

    def places(count):
        return start * (count - 1) + np.arange(count) * side

    def interpolate(values, at):
        low = np.floor(at).astype(int)
        high = np.minimum(low + 1, values.shape[0] - 1)
        weight = (at - low).reshape(-1, *[1] * (values.ndim - 1))
        return values[low] * (1 - weight) + values[high] * weight

    rows = interpolate(image / 255.0, places(height))
    return interpolate(rows.transpose(1, 0, 2), places(width)).transpose(1, 0, 2) * 255.5


@pytest.mark.parametrize(
    ("height", "width", "size"), [(256, 256, 224), (480, 640, 224), (128, 128, 224), (224, 100, 64)]
)
def test_lanczos_is_the_formula(height, width, size):
    image = photo(height, width)
    exact = lanczos3_exact(image, size).clip(0, 255)
    resized = transforms.resize_lanczos3(image, size)
    assert resized.dtype == np.uint8 and resized.shape == (size, size, 3)
    assert np.abs(resized - exact).max() <= 0.5 + 1e-3
    ties = np.abs(exact - np.floor(exact) - 0.5) < 1e-3
    assert np.array_equal(resized[~ties], np.rint(exact)[~ties])


@pytest.mark.parametrize("value", [0, 1, 127, 200, 255])
def test_flat_images_stay_flat(value):
    flat = np.full((256, 256, 3), value, np.uint8)
    assert (transforms.resize_lanczos3(flat, 224) == value).all() and transforms.resize_lanczos3(flat, 256) is flat
    assert (transforms.centre_crop(flat[:224, :224]) == value).all()
    assert np.abs(transforms.jpeg_round_trip(flat).astype(int) - value).max() <= 1


@pytest.mark.parametrize("area", [0.9, 0.5])
def test_crop_is_the_formula(area):
    image = photo(224, 224)
    exact = crop_exact(image, area)
    cropped = transforms.centre_crop(image, area)
    sure = np.abs(exact - np.rint(exact)) > 1e-3  # elsewhere float32 may fall on the other side
    assert np.array_equal(cropped[sure], np.floor(exact)[sure].clip(0, 255))
    assert np.abs(cropped.astype(int) - np.floor(exact).clip(0, 255)).max() <= 1
    assert sure.mean() > 0.99


def test_crop_of_everything_changes_nothing():
    image = photo(224, 224)
    assert np.array_equal(transforms.centre_crop(image, 1.0), image)
    for area in (0.0, 1.1, -1.0):
        with pytest.raises(ValueError, match="crop area"):
            transforms.centre_crop(image, area)


def test_jpeg_is_the_stored_vector():
    """A 16 × 16 ramp: levels written down once from the decoder whose bits equal TensorFlow's."""
    y, x = np.mgrid[:16, :16]
    ramp = np.stack([x * 16, y * 16, (x + y) * 8], axis=-1).astype(np.uint8)
    decoded = transforms.jpeg_round_trip(ramp)
    assert np.array_equal(decoded[::5, ::5].reshape(-1, 3), JPEG_RAMP)
    assert np.abs(decoded.astype(int) - ramp).mean() < 12  # 4:2:0 blurs colours


def test_prepare_is_the_chain():
    profile, frame = PROFILES["openvla"], photo(seed=3)
    turned = transforms.rotate_180(frame)
    assert np.array_equal(turned[3, 7], frame[-4, -8])
    expected = transforms.centre_crop(transforms.resize_lanczos3(transforms.jpeg_round_trip(turned), 224), 0.9)
    prepared = images.prepare(frame, profile)
    assert prepared.shape == (224, 224, 3) and prepared.dtype == np.uint8 and prepared.flags.c_contiguous
    assert np.array_equal(prepared, expected)
    assert np.array_equal(prepared, images.prepare(frame, profile))


@pytest.mark.parametrize(
    "image",
    [np.zeros((4, 4, 3)), np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8)],
)
def test_other_arrays_are_rejected(image):
    with pytest.raises(ValueError, match=r"expected uint8 \[H, W, 3\]"):
        images.prepare(image, PROFILES["openvla"])
