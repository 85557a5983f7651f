"""Read the image preprocessing of the two vision towers from preprocessor_config.json, as upstream's processor does.

That processor (openvla: prismatic/extern/hf/processing_prismatic.py) derives its transform from `means`, `stds` and
`interpolations`, and then overrides it with every `tvf_*` field of the file. Published
checkpoints have such fields with other values: their converter wrote them in bfloat16, so DINOv2's mean is
0.484375, 0.455078125, 0.40625 there, and the models have been served with these values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_modelkit.checkpoint import CheckpointError, read_json

FILE = "preprocessor_config.json"
RESAMPLINGS = (
    "nearest",
    "lanczos",
    "bilinear",
    "bicubic",
    "box",
    "hamming",
)  # the index is Pillow's number


@dataclass(frozen=True)
class TowerPreprocessing:
    """A tower's preprocessing: resize to a square of `size` pixels with `interpolation`, then normalise."""

    size: int
    interpolation: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def read_preprocessing(directory: Path) -> tuple[TowerPreprocessing, TowerPreprocessing]:
    """Return the preprocessing of both towers. Raises CheckpointError, naming the field, for unsupported values."""
    raw = read_json(directory / FILE)
    _check_strategy(raw, directory)
    towers = tuple(_tower_preprocessing(raw, index, directory) for index in range(2))
    if towers[0].interpolation != towers[1].interpolation or towers[0].size != towers[1].size:
        seen = " and ".join(f"{tower.size} pixels, {tower.interpolation}" for tower in towers)
        raise _field_error(directory, "interpolations", f"the towers have {seen}", "the same for both towers")
    return towers


def _check_strategy(raw: Mapping[str, Any], directory: Path) -> None:
    strategy = raw.get("image_resize_strategy", "letterbox")  # upstream's default
    if strategy != "resize-naive":
        raise _field_error(
            directory, "image_resize_strategy", repr(strategy), "'resize-naive', as OpenVLA-7B was trained"
        )
    if raw.get("tvf_do_letterbox"):
        raise _field_error(directory, "tvf_do_letterbox", "true", "false: OpenVLA-7B was trained on stretched images")
    for name in ("input_sizes", "interpolations", "means", "stds"):
        if not isinstance(raw.get(name), list) or len(raw[name]) != 2:
            raise _field_error(directory, name, repr(raw.get(name)), "two entries, one for each vision tower")
    for name in ("tvf_resize_params", "tvf_crop_params", "tvf_normalize_params"):
        value = raw.get(name)
        if name in raw and not (
            isinstance(value, list) and len(value) >= 2 and all(isinstance(g, dict) for g in value)
        ):
            raise _field_error(directory, name, repr(value), "two objects, one for each vision tower")


def _tower_preprocessing(raw: Mapping[str, Any], index: int, directory: Path) -> TowerPreprocessing:
    size = _side(raw["input_sizes"][index], "input_sizes", directory)
    resize, crop, normalise = (
        raw.get(f"tvf_{name}_params", [{}, {}])[index] for name in ("resize", "crop", "normalize")
    )
    resized = _side(resize.get("size", [size, size]), "tvf_resize_params", directory)
    cropped = _side(crop.get("output_size", [resized, resized]), "tvf_crop_params", directory)
    if not size == resized == cropped or resize.get("max_size") is not None:
        actual = f"{size} pixels resized to {resized} and cropped to {cropped}"
        raise _field_error(directory, "tvf_resize_params", actual, "one size throughout and max_size null")
    mean = _triple(normalise.get("mean", raw["means"][index]), "mean", index, directory)
    std = _triple(normalise.get("std", raw["stds"][index]), "std", index, directory)
    if 0.0 in std:
        raise _field_error(directory, "std", repr(list(std)), "numbers other than 0")
    return TowerPreprocessing(
        size, _resampling(resize.get("interpolation", raw["interpolations"][index]), directory), mean, std
    )


def _side(size: Any, name: str, directory: Path) -> int:
    """Return S of [S, S] or [3, S, S]."""
    side = size[-1] if isinstance(size, list) and len(size) in (2, 3) else None
    if not isinstance(side, int) or side < 1 or size[-2] != side:
        raise _field_error(directory, name, repr(size), "a square")
    return side


def _resampling(value: Any, directory: Path) -> str:
    name = RESAMPLINGS[value] if type(value) is int and 0 <= value < len(RESAMPLINGS) else value
    if name not in RESAMPLINGS:
        raise _field_error(
            directory, "interpolations", repr(value), f"one of {', '.join(RESAMPLINGS)}, or Pillow's number of it"
        )
    return name


def _triple(values: Any, name: str, index: int, directory: Path) -> tuple[float, float, float]:
    if not isinstance(values, Sequence) or len(values) != 3 or not all(type(value) in (int, float) for value in values):
        raise _field_error(directory, f"{name} of tower {index + 1}", repr(values), "three numbers")
    return tuple(float(value) for value in values)


def _field_error(directory: Path, name: str, actual: str, expected: str) -> CheckpointError:
    return CheckpointError(
        f"{directory / FILE}: {name}: {actual}; expected {expected}: the checkpoint is of another model, or incomplete"
    )
