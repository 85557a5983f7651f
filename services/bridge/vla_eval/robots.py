"""Layout of vla-eval's messages for each robot: keys, flags and formats.

`LIBERO` is vla_eval/benchmarks/libero/benchmark.py of vla-eval 0.8.0, with vla_eval/specs.py and rotation.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from services.bridge.robots import describe, image_hwc, member, state_of
from vla_contract import InvalidObservation, Observation
from vla_contract.protocol.parts import GRIPPER_CLOSES, HAND_STATE, OSC_POSE, Part, format_parts, total

IMAGES, TASK_DESCRIPTION, STATE, ACTIONS = "images", "task_description", "states", "actions"
SEND_WRIST_IMAGE, SEND_STATE, FULL_ROTATION, ABSOLUTE_ACTION = (
    "send_wrist_image",
    "send_state",
    "quat_no_antipodal",
    "absolute_action",
)
SPECS = {  # formats that a server may state; "raw" is any
    "action_spec": {
        "position": ("delta_xyz", "raw"),
        "rotation": ("axis_angle", "raw"),
        "gripper": ("binary_close_positive", "raw"),
    },
    "observation_spec": {"state": ("eef_pos3_axisangle3_gripper2", "raw")},
}


@dataclass(frozen=True)
class VlaEvalRobot:
    """images: wire key → camera, in the wire's order: a server takes the first as the benchmark's main camera.
    `action` is what vla-eval's benchmark executes; `benchmark` our module and `profile` our protocol of the same.
    """

    name: str
    images: Mapping[str, str]
    state_parts: tuple[Part, ...]
    action: tuple[Part, ...]
    image_hw: tuple[int, int]
    benchmark: str
    profile: str

    def message(self, observation: Observation, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return an observation as vla-eval's benchmark sends it to a server with these `params`."""
        images = {
            key: observation.images[camera] for key, camera in self.images.items() if self.sends_image(key, params)
        }
        message: dict[str, Any] = {IMAGES: images, TASK_DESCRIPTION: observation.instruction}
        if params.get(SEND_STATE):
            state = np.asarray(observation.state, np.float64)
            message[STATE] = state if params.get(FULL_ROTATION) else limit_rotation(state)
        return message

    def sends_image(self, key: str, params: Mapping[str, Any]) -> bool:
        """Return whether the image of a wire key is sent to a server with these `params`."""
        return key != "wrist" or bool(params.get(SEND_WRIST_IMAGE))

    def actions(self, answer: Mapping[str, Any]) -> np.ndarray:
        """Return the action of an answer, float32 [1, n], the gripper −1 or 1. Raises ValueError."""
        value, size = answer.get(ACTIONS, answer.get("action")), total(self.action)
        try:
            action = np.asarray(value, np.float32)
        except (ValueError, TypeError):
            action = np.empty(0, np.float32)
        if action.shape != (size,) or not np.isfinite(action).all():
            actual = describe(value) if action.shape != (size,) else "not finite"
            raise ValueError(f"the action is {actual}; expected {size} numbers: {format_parts(self.action)}")
        return np.array([[*action[:-1], -1.0 if action[-1] < 0 else 1.0]], np.float32)

    def observation(
        self, message: Mapping[str, Any], cameras: tuple[str, ...], has_state: bool, session: str, step: int
    ) -> Observation:
        """Return a client's message as an observation of `cameras`, with the state if `has_state`.

        Raises InvalidObservation naming the key that is missing or invalid.
        """
        entries = member(message, IMAGES)
        if not isinstance(entries, dict):
            raise InvalidObservation(f"{IMAGES!r} is {describe(entries)}; expected a map of images")
        keys = {camera: key for key, camera in self.images.items()}
        images = {camera: image_hwc(keys[camera], member(entries, keys[camera])) for camera in cameras}
        state = state_of(message, STATE, self.state_parts) if has_state else None
        instruction = member(message, TASK_DESCRIPTION)
        if type(instruction) is not str:
            raise InvalidObservation(f"{TASK_DESCRIPTION!r} is {describe(instruction)}; expected a text")
        return Observation(images, state, instruction, session, step)


def limit_rotation(state: np.ndarray) -> np.ndarray:
    """Return a hand's state with a rotation of at most half a turn, as vla-eval's benchmark sends it by default;
    robosuite's own goes up to a full turn.
    """
    angle = float(np.linalg.norm(state[3:6]))
    if angle <= math.pi:
        return state
    return np.concatenate([state[:3], state[3:6] * ((angle - 2 * math.pi) / angle), state[6:]])


def find_mismatch(hello: Mapping[str, Any]) -> str:
    """Return the requirement of a server's hello that this robot does not meet; empty if it meets all."""
    if isinstance(params := hello.get("observation_params", {}), dict) and params.get(ABSOLUTE_ACTION):
        return "answers absolute poses; this robot executes deltas"
    for spec, part, form, formats in _formats(hello):
        if form is not None and form not in formats:
            does = "answers" if spec == "action_spec" else "needs"
            return f"{does} {part} as {form!r:.60}; this robot has {formats[0]}"
    return ""


def assumed_formats(hello: Mapping[str, Any]) -> str:
    """Return the formats that a server's hello does not state and that are assumed: "position delta_xyz, …"."""
    params = hello.get("observation_params")
    specs = {"action_spec"} | ({"observation_spec"} if isinstance(params, dict) and params.get(SEND_STATE) else set())
    unspecified = (entry for entry in _formats(hello) if entry[2] in (None, "raw") and entry[0] in specs)
    return ", ".join(f"{part} {formats[0]}" for _, part, _, formats in unspecified)


def _formats(hello: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, tuple[str, ...]]]:
    """Yield spec, part, the format that a hello states (None if none) and the supported formats."""
    for spec, parts in SPECS.items():
        stated = hello.get(spec)
        for part, formats in parts.items():
            entry = stated.get(part) if isinstance(stated, dict) else None
            yield spec, part, entry.get("format") if isinstance(entry, dict) else None, formats


LIBERO = VlaEvalRobot(
    name="libero",
    images=MappingProxyType({"agentview": "agentview", "wrist": "robot0_eye_in_hand"}),
    state_parts=HAND_STATE,
    action=(*OSC_POSE, GRIPPER_CLOSES),
    image_hw=(256, 256),
    benchmark="services.libero.benchmark",
    profile="vla-eval",
)
ROBOTS: Mapping[str, VlaEvalRobot] = MappingProxyType({"libero": LIBERO})
