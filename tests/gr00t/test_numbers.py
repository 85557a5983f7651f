"""State and action to the network's numbers and back, against upstream's formulas and against pytorch3d's rotations."""

from pathlib import Path

import numpy as np
import pytest

from services.gr00t.checkpoint.embodiment import ROTATIONS, Transform
from services.gr00t.processing import rotations
from services.gr00t.processing.numbers import channels
from tests.gr00t import cases
from vla_modelkit.checkpoint import CheckpointError

LOW, HIGH = [-2.0, 0.0, 1.0], [2.0, 4.0, 1.0]  # the last one never moved
STATISTICS = {"min": LOW, "max": HIGH, "q01": LOW, "q99": HIGH, "mean": LOW, "std": [2.0, 4.0, 0.0]}
ENTRY = {"shape": [3], "continuous": True, "absolute": True, "rotation_type": "axis_angle"}


def channel(normalization="none", rotation="", **entry):
    statistics, modalities = ({"state": {"arm": value}} for value in (STATISTICS, {**ENTRY, **entry}))
    metadata = {"statistics": statistics, "modalities": modalities}
    return channels("state", {"arm": Transform(normalization, rotation)}, metadata)[0]


@pytest.mark.parametrize(
    ("mode", "values", "encoded"),
    [
        ("min_max", [0.0, 4.0, 5.0], [0.0, 1.0, 0.0]),
        ("mean_std", [0.0, 4.0, 5.0], [1.0, 1.0, 5.0]),
        ("q99", [0.0, 9.0, 0.5], [0.0, 1.0, 0.5]),
        ("binary", [0.5, 0.6, -1.0], [0.0, 1.0, 0.0]),
        ("none", [0.5, 0.6, -1.0], [0.5, 0.6, -1.0]),
        ("sin_cos", [0.0, np.pi / 2, 0.0], [0.0, 1.0, 0.0, 1.0, 0.0, 1.0]),
    ],
)
def test_values_are_normalised(mode, values, encoded):
    one = channel(mode)
    assert one.width == len(encoded)
    np.testing.assert_allclose(one.encode(np.array(values)), encoded, atol=1e-12)


@pytest.mark.parametrize("mode", ["min_max", "mean_std", "q99", "none"])
def test_what_was_normalised_comes_back(mode):
    values = np.array([[0.5, 3.0, 1.0]], np.float32)
    one = channel(mode)
    back = one.decode(one.encode(values))
    assert back.dtype == np.float32
    np.testing.assert_allclose(back[:, :2], values[:, :2], rtol=1e-6)


def test_a_binary_output_is_one_or_nought():
    assert channel("binary").decode(np.array([0.2, 0.5, 0.8], np.float32)).tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("source", ROTATIONS)
@pytest.mark.parametrize("target", ROTATIONS)
def test_rotations_are_pytorch3ds(source, target):
    if source == target:
        return
    with np.load(Path(__file__).parent / "data" / "rotations-pytorch3d.npz") as stored:  # make_reference.py
        wanted = stored[f"{source} {target}"]
    ours = rotations.convert(cases.rotation(source, rotations.size(source)), source, target)
    if target == "quaternion":  # q and -q turn alike
        ours, wanted = (one * np.sign(one[:, :1]) for one in (ours, wanted))
    np.testing.assert_allclose(ours, wanted, atol=1e-6)


def test_a_converted_rotation_is_normalised_by_its_representation():
    one = channel("min_max", "euler_angles_rpy")
    assert one.rotation == ("axis_angle", "euler_angles_rpy")
    np.testing.assert_allclose(one.encode(np.array([np.pi / 2, 0.0, 0.0])), [0.5, 0.0, 0.0], atol=1e-9)
    assert channel("none", "axis_angle").rotation is None, "it is one already"


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: channel("min_max", "rotation_6d", absolute=False), "only absolute ones"),
        (lambda: channel("mean_std", "rotation_6d"), "only absolute ones"),
        (lambda: channel("none", "rotation_6d", rotation_type=None), "rotation_type None"),
        (lambda: channel("min_max", continuous=False), "not continuous"),
    ],
)
def test_a_transform_that_does_not_fit_the_data_is_refused(made, words):
    with pytest.raises(CheckpointError, match=words):
        made()
