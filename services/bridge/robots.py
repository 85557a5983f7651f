"""Layout of openpi's messages for each robot: keys of images, state and prompt.

`LIBERO` is examples/libero/main.py of openpi@15a9616a, and src/openpi/policies/libero_policy.py at the server's end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from vla_contract import InvalidObservation, Observation
from vla_contract.protocol.errors import did_you_mean
from vla_contract.protocol.parts import GRIPPER_CLOSES, HAND_STATE, OSC_POSE, Part, format_parts, total

PROMPT, ACTIONS = "prompt", "actions"


@dataclass(frozen=True)
class OpenpiRobot:
    """images: wire key → camera; state: its wire key. `action` is what openpi's environment executes,
    `profile` the evaluation protocol that its servers' models were measured under.
    """

    name: str
    images: Mapping[str, str]
    state: str
    state_parts: tuple[Part, ...]
    action: tuple[Part, ...]
    image_hw: tuple[int, int]
    profile: str

    def message(self, observation: Observation) -> dict[str, Any]:
        """Return an observation as openpi's clients send it. The state is float64 [n], as the simulator gives it."""
        images = {key: observation.images[camera] for key, camera in self.images.items()}
        state = np.asarray(observation.state, np.float64)
        return {**images, self.state: state, PROMPT: observation.instruction}

    def observation(
        self, message: Mapping[str, Any], cameras: tuple[str, ...], has_state: bool, session: str, step: int
    ) -> Observation:
        """Return a client's message as an observation of `cameras`, with the state if `has_state`.

        Raises InvalidObservation naming the key that is missing or invalid.
        """
        keys = {camera: key for key, camera in self.images.items()}
        images = {camera: image_hwc(keys[camera], member(message, keys[camera])) for camera in cameras}
        state = state_of(message, self.state, self.state_parts) if has_state else None
        prompt = member(message, PROMPT)
        if type(prompt) is not str:
            raise InvalidObservation(f"{PROMPT!r} must be a string, got {type(prompt).__name__}")
        return Observation(images, state, prompt, session, step)


def blank(robot: Any) -> Observation:
    """Return a robot's test observation: black images, a state of zeros and an instruction."""
    images = dict.fromkeys(robot.images.values(), np.zeros((*robot.image_hw, 3), np.uint8))
    return Observation(images, np.zeros(total(robot.state_parts), np.float32), "do something", "warm-up", 0)


def state_of(message: Mapping[str, Any], key: str, parts: tuple[Part, ...]) -> np.ndarray:
    """Return the state under a key, float32 [n]. Raises InvalidObservation for another type or size."""
    state, size = member(message, key), total(parts)
    if not isinstance(state, np.ndarray) or state.dtype.kind != "f" or state.shape != (size,):
        raise InvalidObservation(f"{key!r} is {describe(state)}; expected {size} numbers: {format_parts(parts)}")
    return state.astype(np.float32)


def member(message: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key. Raises InvalidObservation if the key is missing."""
    if key not in message:
        raise InvalidObservation(f"{key!r} is missing{did_you_mean(key, list(message)[:20])}")
    return message[key]


def image_hwc(key: str, image: Any) -> np.ndarray:
    """Return an image as uint8 [H, W, 3]; [3, H, W] is transposed, as openpi's servers do."""
    if isinstance(image, np.ndarray) and image.ndim == 3 and image.shape[0] == 3 != image.shape[2]:
        image = np.ascontiguousarray(image.transpose(1, 2, 0))
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise InvalidObservation(f"{key!r} is {describe(image)}; expected uint8 [height, width, 3]")
    return image


def describe(value: Any) -> str:
    """Describe a value for errors: "float32 [10, 32]", "a str"."""
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"


LIBERO = OpenpiRobot(
    name="libero",
    images=MappingProxyType(
        {"observation/image": "agentview", "observation/wrist_image": "robot0_eye_in_hand"},
    ),
    state="observation/state",
    state_parts=HAND_STATE,
    action=(*OSC_POSE, GRIPPER_CLOSES),
    image_hw=(224, 224),
    profile="openpi",
)
ROBOTS: Mapping[str, OpenpiRobot] = MappingProxyType({"libero": LIBERO})
