"""What preprocessor_config.json says of a picture's way into the two vision towers, read as upstream's processor does.

That processor (openvla: prismatic/extern/hf/processing_prismatic.py) works out its transform from `means`, `stds` and
`interpolations`, and then lets every `tvf_*` field of the file take the place of what it worked out. Published
checkpoints hold such fields, and they differ: their converter wrote them under bfloat16, so DINOv2's mean is
0.484375, 0.455078125, 0.40625 there, and the models were served with that ever since.
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
)  # a filter's place is its number in Pillow


@dataclass(frozen=True)
class TowerPreprocessing:
    """What one tower is shown: the picture resized to a square of `size` pixels by `interpolation`, then normalised."""

    size: int
    interpolation: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def read_preprocessing(directory: Path) -> tuple[TowerPreprocessing, TowerPreprocessing]:
    """Returns what the towers are shown. Raises CheckpointError for what this engine does not do, naming the field."""
    raw = read_json(directory / FILE)
    _check_strategy(raw, directory)
    towers = tuple(_tower_preprocessing(raw, index, directory) for index in range(2))
    if towers[0].interpolation != towers[1].interpolation or towers[0].size != towers[1].size:
        seen = " and ".join(f"{tower.size} pixels, {tower.interpolation}" for tower in towers)
        raise _wrong(directory, "interpolations", f"the towers are shown {seen}", "one picture, resized once for both")
    return towers


def _check_strategy(raw: Mapping[str, Any], directory: Path) -> None:
    strategy = raw.get("image_resize_strategy", "letterbox")  # upstream's default
    if strategy != "resize-naive":
        raise _wrong(directory, "image_resize_strategy", repr(strategy), "'resize-naive', as OpenVLA-7B was trained")
    if raw.get("tvf_do_letterbox"):
        raise _wrong(directory, "tvf_do_letterbox", "true", "false: OpenVLA-7B was trained on stretched pictures")
    for name in ("input_sizes", "interpolations", "means", "stds"):
        if not isinstance(raw.get(name), list) or len(raw[name]) != 2:
            raise _wrong(directory, name, repr(raw.get(name)), "two entries, one for each vision tower")
    for name in ("tvf_resize_params", "tvf_crop_params", "tvf_normalize_params"):
        given = raw.get(name)
        if name in raw and not (
            isinstance(given, list) and len(given) >= 2 and all(isinstance(g, dict) for g in given)
        ):
            raise _wrong(directory, name, repr(given), "two objects, one for each vision tower")


def _tower_preprocessing(raw: Mapping[str, Any], index: int, directory: Path) -> TowerPreprocessing:
    size = _side(raw["input_sizes"][index], "input_sizes", directory)
    resize, crop, normalise = (
        raw.get(f"tvf_{name}_params", [{}, {}])[index] for name in ("resize", "crop", "normalize")
    )
    resized = _side(resize.get("size", [size, size]), "tvf_resize_params", directory)
    cropped = _side(crop.get("output_size", [resized, resized]), "tvf_crop_params", directory)
    if not size == resized == cropped or resize.get("max_size") is not None:
        found = f"{size} pixels resized to {resized} and cropped to {cropped}"
        raise _wrong(directory, "tvf_resize_params", found, "one size throughout and max_size null")
    mean = _three(normalise.get("mean", raw["means"][index]), "mean", index, directory)
    std = _three(normalise.get("std", raw["stds"][index]), "std", index, directory)
    if 0.0 in std:
        raise _wrong(directory, "std", repr(list(std)), "numbers other than 0")
    return TowerPreprocessing(
        size, _resampling(resize.get("interpolation", raw["interpolations"][index]), directory), mean, std
    )


def _side(size: Any, name: str, directory: Path) -> int:
    """Returns the side of [S, S] or [3, S, S]."""
    side = size[-1] if isinstance(size, list) and len(size) in (2, 3) else None
    if not isinstance(side, int) or side < 1 or size[-2] != side:
        raise _wrong(directory, name, repr(size), "a square")
    return side


def _resampling(given: Any, directory: Path) -> str:
    name = RESAMPLINGS[given] if type(given) is int and 0 <= given < len(RESAMPLINGS) else given
    if name not in RESAMPLINGS:
        raise _wrong(
            directory, "interpolations", repr(given), f"one of {', '.join(RESAMPLINGS)}, or Pillow's number of it"
        )
    return name


def _three(values: Any, name: str, index: int, directory: Path) -> tuple[float, float, float]:
    if not isinstance(values, Sequence) or len(values) != 3 or not all(type(value) in (int, float) for value in values):
        raise _wrong(directory, f"{name} of tower {index + 1}", repr(values), "three numbers")
    return tuple(float(value) for value in values)


def _wrong(directory: Path, name: str, found: str, expected: str) -> CheckpointError:
    return CheckpointError(
        f"{directory / FILE}: {name}: {found}; expected {expected}: the checkpoint is of another model, or incomplete"
    )
