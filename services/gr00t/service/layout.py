"""Map the contract's vectors to a robot's named parts: an embodiment with the sizes of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.gr00t.checkpoint.embodiment import Embodiment
from services.gr00t.processing.numbers import Channel, channels, modality
from vla_contract import InvalidObservation, Observation
from vla_contract.protocol.parts import Part, total
from vla_modelkit.checkpoint import CheckpointError


@dataclass(frozen=True)
class Layout:
    """Names and sizes of all inputs and outputs.

    state, action   the parts, in the contract's order
    image_hw        the image size that the checkpoint was trained with: (height, width) in pixels
    """

    embodiment: Embodiment
    state: tuple[Channel, ...]
    action: tuple[Channel, ...]
    image_hw: tuple[int, int]

    def __post_init__(self):
        robot = self.embodiment
        vectors = {"a state": (self.state, robot.state_parts), "an action": (self.action, robot.action_parts)}
        for vector, (own, parts) in vectors.items():
            size = sum(channel.size for channel in own)
            if parts and total(parts) != size:
                raise ValueError(
                    f"embodiment {robot.name!r} has {vector} of {size} numbers ({format_channels(own)}); expected "
                    f"{total(parts)}: choose the embodiment that checkpoint or data set are of"
                )

    @property
    def action_parts(self) -> tuple[Part, ...]:
        return self.embodiment.action_parts or self._parts(self.action)

    @property
    def state_parts(self) -> tuple[Part, ...]:
        return self.embodiment.state_parts or self._parts(self.state)

    def _parts(self, channels: Sequence[Channel]) -> tuple[Part, ...]:
        """Return parts with names and sizes only, if unit and convention are not stated."""
        data = f"{self.embodiment.name}'s data"
        return tuple(Part(channel.name, channel.size, "as recorded", data) for channel in channels)

    @property
    def state_size(self) -> int:
        return sum(part.size for part in self.state)

    @property
    def action_size(self) -> int:
        return sum(part.size for part in self.action)

    def named_state(self, observation: Observation) -> dict[str, np.ndarray]:
        """Return the state by name, float32 [n] each. Raises InvalidObservation for a state of another size."""
        if observation.state is None or len(observation.state) != self.state_size:
            sent = "none" if observation.state is None else f"{len(observation.state)} numbers"
            raise InvalidObservation(
                f"state has {sent}; embodiment {self.embodiment.name!r} expects {self.state_size}: "
                f"{format_channels(self.state)}"
            )
        return split(observation.state, self.state)

    def encode_state(self, observation: Observation) -> np.ndarray:
        """Return the network's state, float32 [n]; computed in float64, as upstream does."""
        parts = self.named_state(observation)
        encoded = [part.encode(parts[part.name].astype(np.float64)) for part in self.state]
        return np.concatenate(encoded, dtype=np.float32) if encoded else np.zeros(0, np.float32)

    def decode_actions(self, normalised: np.ndarray) -> np.ndarray:
        """Convert the network's actions [..., 32] to the robot's units, float32 [..., n]."""
        ends = np.cumsum([part.width for part in self.action])
        parts = np.split(normalised, ends, axis=-1)[:-1]  # the rest is padding
        return np.concatenate([channel.decode(part) for channel, part in zip(self.action, parts, strict=True)], axis=-1)

    def named_actions(self, actions: np.ndarray) -> dict[str, np.ndarray]:
        """Return actions [..., n] in upstream's format: action.* [..., m]."""
        return {f"action.{name}": part for name, part in split(actions, self.action).items()}

    def details(self) -> dict[str, str]:
        """Return its entries of `/v1/info`."""
        both = (self.state, self.action)
        modes = [", ".join(f"{part.name} {part.normalization}" for part in parts) for parts in both]
        return {
            "embodiment": self.embodiment.name,
            "embodiment_tag": self.embodiment.tag,
            "state": format_channels(self.state),
            "action": format_channels(self.action),
            "state_normalization": modes[0],
            "action_normalization": modes[1],
            "cameras": ", ".join(f"{camera} = video.{video}" for camera, video in self.embodiment.cameras.items()),
        }


def layout(embodiment: Embodiment, metadata: Mapping[str, Any]) -> Layout:
    """Return the layout of an embodiment with the sizes in its part of a checkpoint's metadata.json.

    Raises ValueError if the checkpoint has no camera, state, action or statistic that the embodiment names,
    or if the cameras differ in size: the network was trained with one.
    """
    sizes = {tuple(modality(metadata, "video", name)["resolution"]) for name in embodiment.cameras.values()}
    if len(sizes) != 1:
        raise CheckpointError(
            f"embodiment {embodiment.name!r} has cameras of {len(sizes)} sizes, {sorted(sizes)}; expected one"
        )
    width, height = sizes.pop()
    state, action = (channels(kind, getattr(embodiment, kind), metadata) for kind in ("state", "action"))
    return Layout(embodiment, state, action, (height, width))


def split(values: np.ndarray, parts: Sequence[Channel]) -> dict[str, np.ndarray]:
    """Split the last axis into the named parts."""
    ends = np.cumsum([part.size for part in parts])
    return dict(zip((part.name for part in parts), np.split(values, ends[:-1], axis=-1), strict=True))


def format_channels(parts: Sequence[Channel]) -> str:
    """Format names and sizes: "x, y, gripper [2]"."""
    return ", ".join(part.name if part.size == 1 else f"{part.name} [{part.size}]" for part in parts)
