"""Between the contract's values and upstream's named arrays: one embodiment with the sizes of one checkpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.gr00t.embodiments import Embodiment
from vla_contract import InvalidObservation, Observation
from vla_contract.protocol.parts import Part, total

# `<image-9>` and `<video-1>` are where Eagle's processor puts pictures in; the others are its tokenizer's own marks.
PLACEHOLDER = re.compile(
    r"<(image|video)-?\d*>|</?(img|box|quad|ref|interval)>|<IMG_CONTEXT>|<\|[^|]*\|>", re.IGNORECASE
)


@dataclass(frozen=True)
class Layout:
    """Names and sizes of everything that goes in and comes out.

    state, action   upstream's name -> how many numbers, in the contract's order
    image_hw        the picture size that the checkpoint's transforms take: (height, width) in pixels
    """

    embodiment: Embodiment
    state: Mapping[str, int]
    action: Mapping[str, int]
    image_hw: tuple[int, int]

    def __post_init__(self):
        for kind, sizes, described in (
            ("an action", self.action, self.embodiment.action_parts),
            ("a state", self.state, self.embodiment.state_parts),
        ):
            size = sum(sizes.values())
            if described and total(described) != size:
                raise ValueError(
                    f"embodiment {self.embodiment.name!r} has {kind} of {size} numbers in this checkpoint "
                    f"({spelled(sizes)}); expected {total(described)}: choose the embodiment that it was trained with"
                )

    @property
    def action_parts(self) -> tuple[Part, ...]:
        """What the numbers of an action are."""
        return self.embodiment.action_parts or self._parts(self.action)

    @property
    def state_parts(self) -> tuple[Part, ...]:
        """What the numbers of the state are."""
        return self.embodiment.state_parts or self._parts(self.state)

    def _parts(self, sizes: Mapping[str, int]) -> tuple[Part, ...]:
        """Returns parts of which only names and sizes are known: the rest is the training data's."""
        return tuple(Part(name, size, "as recorded", f"{self.embodiment.name}'s data") for name, size in sizes.items())

    @property
    def state_size(self) -> int:
        """How many numbers the contract's state vector holds."""
        return sum(self.state.values())

    def to_upstream(self, observation: Observation) -> dict[str, np.ndarray]:
        """Returns a batch of one as upstream's transforms take it.

        video.* uint8 [1, 1, H, W, 3], state.* float64 [1, 1, n], the instruction as a text in an array [1]: the list
        that upstream's own client sends ends up in the prompt with its brackets and quotes, which training never had.
        Raises InvalidObservation for a state of another size and for an instruction with upstream's placeholders.
        """
        if observation.state is None or len(observation.state) != self.state_size:
            sent = "none" if observation.state is None else f"{len(observation.state)} numbers"
            raise InvalidObservation(
                f"state has {sent}; embodiment {self.embodiment.name!r} takes {self.state_size}: {spelled(self.state)}"
            )
        refuse_placeholders(observation.instruction)
        batch = {
            f"video.{upstream}": observation.images[camera][None, None]
            for camera, upstream in self.embodiment.cameras.items()
        }
        # float64 as upstream's clients send it: its transforms refuse a second dtype after the first.
        state = observation.state.astype(np.float64)[None, None]
        batch |= {f"state.{name}": part for name, part in split(state, self.state).items()}
        batch[self.embodiment.language] = np.array([observation.instruction])
        return batch

    def to_actions(self, parts: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns upstream's un-normalised action, action.* [B, T, n], as float32 [B, T, n]."""
        return np.concatenate([np.asarray(parts[f"action.{name}"]) for name in self.action], axis=-1, dtype=np.float32)

    def to_parts(self, actions: np.ndarray) -> dict[str, np.ndarray]:
        """Returns actions [..., n] as upstream answers them: action.* [..., n]."""
        return {f"action.{name}": part for name, part in split(actions, self.action).items()}

    def details(self) -> dict[str, str]:
        """Returns what `/v1/info` tells of it in words."""
        return {
            "embodiment": self.embodiment.name,
            "embodiment_tag": self.embodiment.tag,
            "state": spelled(self.state),
            "action": spelled(self.action),
            "gripper": self.embodiment.gripper,
            "cameras": ", ".join(f"{ours} = video.{theirs}" for ours, theirs in self.embodiment.cameras.items()),
        }


def refuse_placeholders(instruction: str) -> None:
    """Raises InvalidObservation for text that upstream's processor takes for a picture, or its tokenizer for a mark."""
    if found := PLACEHOLDER.search(instruction):
        raise InvalidObservation(
            f"the instruction holds {found.group()!r}, which stands for something else in the model's prompt; say it "
            "in other words"
        )


def layout(one: Embodiment, metadata: Mapping[str, Any]) -> Layout:
    """Returns the layout of an embodiment with the sizes in its part of a checkpoint's metadata.json.

    Raises ValueError where the checkpoint lacks a camera, a state or an action that the embodiment names, or where the
    cameras differ in size: upstream's transforms take one.
    """
    modalities = metadata["modalities"]
    sizes = {tuple(_entry(modalities, "video", name)["resolution"]) for name in one.cameras.values()}
    if len(sizes) != 1:
        raise ValueError(f"embodiment {one.name!r} has cameras of {len(sizes)} sizes, {sorted(sizes)}; expected one")
    width, height = sizes.pop()
    return Layout(
        one,
        {name: int(_entry(modalities, "state", name)["shape"][0]) for name in one.state},
        {name: int(_entry(modalities, "action", name)["shape"][0]) for name in one.action},
        (height, width),
    )


def split(values: np.ndarray, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Returns the last axis cut into named parts of the given sizes."""
    ends = np.cumsum(list(sizes.values()))
    return dict(zip(sizes, np.split(values, ends[:-1], axis=-1), strict=True))


def spelled(sizes: Mapping[str, int]) -> str:
    """Returns names and sizes in words: "x, y, gripper [2]"."""
    return ", ".join(name if size == 1 else f"{name} [{size}]" for name, size in sizes.items())


def _entry(modalities: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    known = modalities.get(kind, {})
    if name not in known:
        raise ValueError(
            f"the checkpoint's metadata has no {kind} {name!r} (it has {', '.join(known) or 'none'}); "
            "choose the embodiment that it was trained with: VLALAB_GR00T_EMBODIMENT"
        )
    return known[name]
