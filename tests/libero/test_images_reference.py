"""The picture pipeline against TensorFlow's own answers (make_picture_reference.py), step by step."""

from pathlib import Path

import numpy as np
import pytest

from tests.libero.image_cases import ROWS, pictures
from vla_evaluation.pictures import transforms

REFERENCE = Path(__file__).parent / "data" / "pictures-tensorflow.npz"


@pytest.fixture(params=[0, 1])
def steps(request):
    """(picture, TensorFlow's JPEG, Lanczos and crop results)."""
    with np.load(REFERENCE, allow_pickle=False) as stored:
        results = [stored[f"{name}{request.param}"] for name in ("jpeg", "lanczos", "crop")]
    return pictures()[request.param], *results


def test_jpeg_is_tensorflows_bit_for_bit(steps):
    np.testing.assert_array_equal(transforms.jpeg_round_trip(steps[0])[::ROWS], steps[1])


def test_lanczos_is_tensorflows_but_for_ties(steps):
    ours = transforms.resize_lanczos3(transforms.jpeg_round_trip(steps[0]), 224)[::ROWS].astype(int)
    off = np.abs(ours - steps[2])
    assert off.max() <= 1
    assert (off > 0).sum() <= 2  # of 16,800: sums run in another order


def test_crop_is_tensorflows_where_its_input_is(steps):
    resized = transforms.resize_lanczos3(transforms.jpeg_round_trip(steps[0]), 224)
    off = np.abs(transforms.centre_crop(resized)[::ROWS].astype(int) - steps[3])
    assert off.max() <= 1
    assert (off > 0).sum() <= 8  # a tie of the resize reaches up to four pixels
