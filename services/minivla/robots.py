"""What the numbers and the pictures of a data set are: what it says of itself, and LIBERO's where it says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from vla_contract.protocol.parts import GRIPPER_OPENS, HAND_STATE, OSC_POSE, Part
from vla_datasets import libero
from vla_datasets.errors import DatasetError


@dataclass(frozen=True)
class Robot:
    """cameras: their names at the simulator → the keys of a set's films, those that policies are trained on first."""

    name: str
    rate_hz: float
    action: tuple[Part, ...]
    state: tuple[Part, ...]
    cameras: Mapping[str, str]


LIBERO = Robot(
    "LIBERO",
    libero.FPS,
    (*OSC_POSE, GRIPPER_OPENS),
    HAND_STATE,
    MappingProxyType({camera: libero.video_key(camera) for camera in libero.CAMERAS}),
)


def of(found: Any) -> Robot:
    """Returns the robot of a data set: of one that the lab has made on another benchmark, what its meta/source.json
    says; LIBERO's otherwise, whose published sets say nothing. DatasetError where that lacks it.
    """
    told = found.source or {}
    if told.get("benchmark", LIBERO.name) == LIBERO.name:
        return LIBERO
    try:
        action, state = (tuple(Part(**part) for part in told[name]) for name in ("action", "state"))
        cameras = {camera: key for key, camera in told["cameras"].items()}
        return Robot(str(told["benchmark"]), float(told["rate_hz"]), action, state, MappingProxyType(cameras))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DatasetError(f"{found.name}: meta/source.json does not say what its numbers are ({error})") from error
