"""Robots of other projects' protocols, and openpi's message of an observation.

`LIBERO` is examples/libero/main.py of openpi@15a9616a, and src/openpi/policies/libero_policy.py at the server's end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from vla_contract import InvalidObservation, Observation, PolicyInfo
from vla_contract.protocol.errors import did_you_mean
from vla_contract.protocol.parts import GRIPPER_CLOSES, HAND_STATE, OSC_POSE, Part, format_parts, total
from vla_evaluation.actions import differing

PROMPT, STATE, ACTIONS = "prompt", "observation/state", "actions"


@dataclass(frozen=True)
class Robot:
    """A robot as a project's protocol has it.

    project  whose protocol
    images   key on the wire -> camera
    action   what the project's environment executes
    profile  the evaluation protocol that the models of its servers were measured under
    """

    name: str
    project: str
    images: Mapping[str, str]
    state_parts: tuple[Part, ...]
    action: tuple[Part, ...]
    image_hw: tuple[int, int]
    profile: str

    def blank(self) -> Observation:
        """Return a test observation: black images, a state of zeros and an instruction."""
        images = dict.fromkeys(self.images.values(), np.zeros((*self.image_hw, 3), np.uint8))
        return Observation(images, np.zeros(total(self.state_parts), np.float32), "do something", "warm-up", 0)

    def check_policy(self, info: PolicyInfo) -> None:
        """Raise ValueError if the protocol lacks an input of a policy, or the policy's actions do not fit."""
        if info.needs_privileged:
            raise ValueError(
                f"policy {info.name!r} needs the simulator's state, which {self.project}'s protocol does not send"
            )
        theirs, available = f"{self.project}'s {self.name}", self.images.values()
        for camera in info.cameras:
            if camera not in available:
                raise ValueError(f"policy {info.name!r} needs camera {camera!r}; {theirs} sends {', '.join(available)}")
        pair = differing(info.action, self.action)
        verb = "answers actions"
        if pair is None and info.state:
            pair, verb = differing(info.state, self.state_parts), "needs a state"
        if pair:
            ours, other = (str(part) if part else "nothing" for part in pair)
            raise ValueError(f"policy {info.name!r} {verb} with {ours} where {theirs} has {other}")


LIBERO = Robot(
    name="libero",
    project="openpi",
    images=MappingProxyType({"observation/image": "agentview", "observation/wrist_image": "robot0_eye_in_hand"}),
    state_parts=HAND_STATE,
    action=(*OSC_POSE, GRIPPER_CLOSES),
    image_hw=(224, 224),
    profile="openpi",
)


def message(robot: Robot, observation: Observation) -> dict[str, Any]:
    """Return an observation as openpi's clients send it. The state is float64 [n], as the simulator gives it."""
    images = {key: observation.images[camera] for key, camera in robot.images.items()}
    return {**images, STATE: np.asarray(observation.state, np.float64), PROMPT: observation.instruction}


def read_observation(
    robot: Robot, message: Mapping[str, Any], info: PolicyInfo, session: str, step: int
) -> Observation:
    """Return an openpi client's message as an observation for a policy.

    Raises InvalidObservation naming the key that is missing or invalid.
    """
    prompt = text_of(message, PROMPT)
    state = state_of(message, STATE, robot.state_parts) if info.needs_state else None
    return Observation(images_of(message, robot, info), state, prompt, session, step)


def images_of(entries: Mapping[str, Any], robot: Robot, info: PolicyInfo) -> dict[str, np.ndarray]:
    """Return the images that a policy needs, uint8 [H, W, 3]; [3, H, W] is transposed, as openpi's servers do."""
    images = {}
    for key, camera in robot.images.items():
        if camera not in info.cameras:
            continue
        image = member(entries, key)
        if isinstance(image, np.ndarray) and image.ndim == 3 and image.shape[0] == 3 != image.shape[2]:
            image = np.ascontiguousarray(image.transpose(1, 2, 0))
        if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise InvalidObservation(f"{key!r} is {describe(image)}; expected uint8 [height, width, 3]")
        images[camera] = image
    return images


def state_of(message: Mapping[str, Any], key: str, parts: tuple[Part, ...]) -> np.ndarray:
    """Return the state under a key, float32 [n]. Raises InvalidObservation for another type or size."""
    state, size = member(message, key), total(parts)
    if not isinstance(state, np.ndarray) or state.dtype.kind != "f" or state.shape != (size,):
        raise InvalidObservation(f"{key!r} is {describe(state)}; expected {size} numbers: {format_parts(parts)}")
    return state.astype(np.float32)


def text_of(message: Mapping[str, Any], key: str) -> str:
    """Return the text under a key. Raises InvalidObservation for anything else."""
    text = member(message, key)
    if type(text) is not str:
        raise InvalidObservation(f"{key!r} is {describe(text)}; expected a text")
    return text


def member(message: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key. Raises InvalidObservation if the key is missing."""
    if key not in message:
        raise InvalidObservation(f"{key!r} is missing{did_you_mean(key, list(message)[:20])}")
    return message[key]


def describe(value: Any) -> str:
    """Describe a value for errors: "float32 [10, 32]", "a str"."""
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
