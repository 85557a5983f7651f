"""Between the contract's values and a robot's named parts: one embodiment with the sizes of one checkpoint."""

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
    """Names and sizes of everything that goes in and comes out.

    state, action   the parts, in the contract's order
    image_hw        the picture size that the checkpoint was trained with: (height, width) in pixels
    """

    embodiment: Embodiment
    state: tuple[Channel, ...]
    action: tuple[Channel, ...]
    image_hw: tuple[int, int]

    def __post_init__(self):
        described = {"a state": (self.state, self.embodiment.state_parts)}
        described |= {"an action": (self.action, self.embodiment.action_parts)}
        for what, (given, parts) in described.items():
            size = sum(channel.size for channel in given)
            if parts and total(parts) != size:
                raise ValueError(
                    f"embodiment {self.embodiment.name!r} has {what} of {size} numbers in this checkpoint "
                    f"({spelled(given)}); expected {total(parts)}: choose the embodiment that it was trained with"
                )

    @property
    def action_parts(self) -> tuple[Part, ...]:
        """What the numbers of an action are."""
        return self.embodiment.action_parts or self._parts(self.action)

    @property
    def state_parts(self) -> tuple[Part, ...]:
        """What the numbers of the state are."""
        return self.embodiment.state_parts or self._parts(self.state)

    def _parts(self, channels: Sequence[Channel]) -> tuple[Part, ...]:
        """Returns parts of which only names and sizes are known: the rest is the training data's."""
        data = f"{self.embodiment.name}'s data"
        return tuple(Part(channel.name, channel.size, "as recorded", data) for channel in channels)

    @property
    def state_size(self) -> int:
        """How many numbers the contract's state vector holds."""
        return sum(part.size for part in self.state)

    @property
    def action_size(self) -> int:
        """How many numbers an action holds."""
        return sum(part.size for part in self.action)

    def named_state(self, observation: Observation) -> dict[str, np.ndarray]:
        """Returns the state by name, float32 [n] each. Raises InvalidObservation for a state of another size."""
        if observation.state is None or len(observation.state) != self.state_size:
            sent = "none" if observation.state is None else f"{len(observation.state)} numbers"
            raise InvalidObservation(
                f"state has {sent}; embodiment {self.embodiment.name!r} takes {self.state_size}: {spelled(self.state)}"
            )
        return split(observation.state, self.state)

    def encode_state(self, observation: Observation) -> np.ndarray:
        """Returns the state as the network takes it, float32 [n]; it is computed in float64, as upstream does."""
        parts = self.named_state(observation)
        encoded = [part.encode(parts[part.name].astype(np.float64)) for part in self.state]
        return np.concatenate(encoded, dtype=np.float32) if encoded else np.zeros(0, np.float32)

    def decode_actions(self, normalised: np.ndarray) -> np.ndarray:
        """Returns actions float32 [..., n] in the robot's units for the network's [..., 32]."""
        ends = np.cumsum([part.width for part in self.action])
        parts = np.split(normalised, ends, axis=-1)[:-1]  # behind the last end is padding
        return np.concatenate([one.decode(part) for one, part in zip(self.action, parts, strict=True)], axis=-1)

    def named_actions(self, actions: np.ndarray) -> dict[str, np.ndarray]:
        """Returns actions [..., n] as upstream answers them: action.* [..., m]."""
        return {f"action.{name}": part for name, part in split(actions, self.action).items()}

    def details(self) -> dict[str, str]:
        """Returns what `/v1/info` tells of it in words."""
        return {
            "embodiment": self.embodiment.name,
            "embodiment_tag": self.embodiment.tag,
            "state": spelled(self.state),
            "action": spelled(self.action),
            "state_normalization": _normalizations(self.state),
            "action_normalization": _normalizations(self.action),
            "cameras": ", ".join(f"{ours} = video.{theirs}" for ours, theirs in self.embodiment.cameras.items()),
        }


def layout(one: Embodiment, metadata: Mapping[str, Any]) -> Layout:
    """Returns the layout of an embodiment with the sizes in its part of a checkpoint's metadata.json.

    Raises ValueError where the checkpoint lacks a camera, a state, an action or a statistic that the embodiment names,
    or where the cameras differ in size: the network was trained with one.
    """
    sizes = {tuple(modality(metadata, "video", name)["resolution"]) for name in one.cameras.values()}
    if len(sizes) != 1:
        raise CheckpointError(
            f"embodiment {one.name!r} has cameras of {len(sizes)} sizes, {sorted(sizes)}; expected one"
        )
    width, height = sizes.pop()
    state, action = (channels(kind, getattr(one, kind), metadata) for kind in ("state", "action"))
    return Layout(one, state, action, (height, width))


def _normalizations(parts: Sequence[Channel]) -> str:
    return ", ".join(f"{part.name} {part.normalization}" for part in parts)


def split(values: np.ndarray, parts: Sequence[Channel]) -> dict[str, np.ndarray]:
    """Returns the last axis cut into the named parts."""
    ends = np.cumsum([part.size for part in parts])
    return dict(zip((part.name for part in parts), np.split(values, ends[:-1], axis=-1), strict=True))


def spelled(parts: Sequence[Channel]) -> str:
    """Returns names and sizes in words: "x, y, gripper [2]"."""
    return ", ".join(part.name if part.size == 1 else f"{part.name} [{part.size}]" for part in parts)
