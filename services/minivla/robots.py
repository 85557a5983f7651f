"""Conventions of a data set's robot: from the data set's own description, or LIBERO's by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from vla_contract.protocol.parts import GRIPPER_OPENS, HAND_STATE, OSC_POSE, Part
from vla_datasets import libero
from vla_datasets.errors import DatasetError


@dataclass(frozen=True)
class MinivlaRobot:
    """cameras: name in the simulator → video key of the data set, in order of use for training."""

    name: str
    rate_hz: float
    action: tuple[Part, ...]
    state: tuple[Part, ...]
    cameras: Mapping[str, str]


LIBERO = MinivlaRobot(
    "LIBERO",
    libero.FPS,
    (*OSC_POSE, GRIPPER_OPENS),
    HAND_STATE,
    MappingProxyType({camera: libero.video_key(camera) for camera in libero.CAMERAS}),
)


def of(dataset: Any) -> MinivlaRobot:
    """Return the robot of a data set.

    Data sets that the lab made on other benchmarks describe it in meta/source.json; all others are LIBERO's. Raises
    DatasetError if that description is incomplete.
    """
    source = dataset.source or {}
    if source.get("benchmark", LIBERO.name) == LIBERO.name:
        return LIBERO
    try:
        action, state = (tuple(Part(**part) for part in source[name]) for name in ("action", "state"))
        cameras = {camera: key for key, camera in source["cameras"].items()}
        return MinivlaRobot(
            str(source["benchmark"]), float(source["rate_hz"]), action, state, MappingProxyType(cameras)
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DatasetError(
            f"{dataset.name}: meta/source.json has no valid description of the robot ({error})"
        ) from error
