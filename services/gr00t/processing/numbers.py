"""Convert state and action between the robot's units and the network's, with a checkpoint's statistics.

min_max: [min, max] -> [-1, 1], and 0 where they are equal; mean_std; q99: [q01, q99] -> [-1, 1], clipped;
binary: x > 0.5; sin_cos: sines, then cosines. A rotation is converted before it is normalised.
Source: Isaac-GR00T at 4af2b622, gr00t/data/transform/state_action.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.gr00t.checkpoint.embodiment import ROTATIONS, Transform
from services.gr00t.processing import rotations
from vla_modelkit.checkpoint import CheckpointError

NEEDS = {"min_max": ("min", "max"), "mean_std": ("mean", "std"), "q99": ("q01", "q99")}


@dataclass(frozen=True)
class Channel:
    """A named part of a state or an action, and its conversion to the network's numbers and back.

    size      numbers in the robot's units
    rotation  (in the data, in the network), if they differ
    low, high float64 [n], of the normalization, if it has them
    """

    name: str
    size: int
    normalization: str
    rotation: tuple[str, str] | None = None
    low: np.ndarray | None = None
    high: np.ndarray | None = None

    @property
    def width(self) -> int:
        size = rotations.size(self.rotation[1]) if self.rotation else self.size
        return 2 * size if self.normalization == "sin_cos" else size

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Return the network's numbers [..., width] for the robot's [..., size], in their dtype."""
        if self.rotation:
            values = rotations.convert(values, *self.rotation)
        if self.normalization == "none":
            return values
        if self.normalization == "sin_cos":
            return np.concatenate((np.sin(values), np.cos(values)), axis=-1)
        if self.normalization == "binary":
            return (values > 0.5).astype(values.dtype)
        low, high = self.low.astype(values.dtype), self.high.astype(values.dtype)
        if self.normalization == "mean_std":
            return np.where(high != 0, (values - low) / np.where(high != 0, high, 1), values)
        width = high - low
        scaled = 2 * ((values - low) / np.where(width != 0, width, 1)) - 1
        if self.normalization == "min_max":
            return np.where(width != 0, scaled, 0).astype(values.dtype)
        return np.clip(np.where(width != 0, scaled, values), -1, 1)

    def decode(self, values: np.ndarray) -> np.ndarray:
        """Return the robot's numbers for the network's, in their dtype."""
        if self.normalization == "binary":
            values = (values > 0.5).astype(values.dtype)
        elif self.normalization != "none":
            low, high = self.low.astype(values.dtype), self.high.astype(values.dtype)
            mean_std = self.normalization == "mean_std"
            values = values * high + low if mean_std else (values + 1) / 2 * (high - low) + low
        return rotations.convert(values, *self.rotation[::-1]) if self.rotation else values


def channels(kind: str, parts: Mapping[str, Transform], metadata: Mapping[str, Any]) -> tuple[Channel, ...]:
    """Return the channels of a state or an action with the sizes and statistics of a checkpoint.

    kind: "state" or "action". metadata: the embodiment's part of metadata.json. Raises CheckpointError for a missing
    name or statistic, or a transform that does not fit.
    """
    return tuple(_channel(kind, name, part, metadata) for name, part in parts.items())


def _channel(kind: str, name: str, part: Transform, metadata: Mapping[str, Any]) -> Channel:
    entry = modality(metadata, kind, name)
    size, source, rotation = int(entry["shape"][0]), entry.get("rotation_type"), None
    if part.rotation and part.rotation != source:
        if source not in ROTATIONS:
            raise CheckpointError(
                f"{kind} {name!r} cannot be converted to {part.rotation!r}: the checkpoint's metadata has "
                f"rotation_type {source!r}; expected one of {', '.join(ROTATIONS)}"
            )
        rotation = (source, part.rotation)
    if part.normalization not in NEEDS:
        return Channel(name, size, part.normalization, rotation)
    if rotation:  # normalised by the bounds of its representation
        if not entry.get("absolute", True) or part.normalization != "min_max":
            raise CheckpointError(
                f"{kind} {name!r} is a converted rotation; only absolute ones can be normalised, by 'min_max'"
            )
        reach = 1.0 if part.rotation in ("rotation_6d", "quaternion") else np.pi
        high = np.full(rotations.size(part.rotation), reach)
        return Channel(name, size, part.normalization, rotation, -high, high)
    if not entry.get("continuous", True):
        raise CheckpointError(f"{kind} {name!r} is not continuous; its normalization must be 'binary'")
    stored, bounds = metadata.get("statistics", {}).get(kind, {}).get(name, {}), []
    for needed in NEEDS[part.normalization]:
        values = np.asarray(stored.get(needed, ()), np.float64)
        if values.shape != (size,) or not np.isfinite(values).all():
            raise CheckpointError(
                f"the checkpoint's statistics have no usable {needed!r} of {kind} {name!r} (expected {size} finite "
                f"numbers), which {part.normalization!r} needs: fine-tune again, or choose another embodiment"
            )
        bounds.append(values)
    return Channel(name, size, part.normalization, None, *bounds)


def modality(metadata: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    """Return the entry of a camera, state or action in metadata.json. Raises CheckpointError if it is missing."""
    entries = metadata.get("modalities", {}).get(kind, {})
    if name not in entries:
        raise CheckpointError(
            f"the checkpoint's metadata has no {kind} {name!r} (it has {', '.join(entries) or 'none'}); "
            "choose the embodiment that it was trained with: VLALAB_GR00T_EMBODIMENT"
        )
    return entries[name]
